"""Sampling through the Cholesky factor of the covariance: other samples of the same distribution."""

from __future__ import annotations

import math

import noise_oracle
import numpy as np
import pytest
import torch
from backend import REFERENCE, native_only
from heads import COVARIANCES, cast, random_head
from parity import Errors

from hetnet_ext import functional, reference

FACTORED = [covariance for covariance in COVARIANCES if covariance != "diagonal"]


def logits(head, **options):
    given = {"cov_factor": None, "factor_scale": None, **head}
    seed = torch.tensor([options.pop("seed"), 0])
    return functional.draw_logits(**given, seed=seed, sampling="cholesky", **options)


def covariance_of(head) -> torch.Tensor:
    factor = head["cov_factor"] if "factor_scale" not in head else head["cov_factor"] * head["factor_scale"][:, None]
    return torch.diag_embed(head["scale"] ** 2) + factor @ factor.mT


@pytest.mark.parametrize("samples", [1, 5, 40, 700])
@pytest.mark.parametrize("covariance", FACTORED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_samples_are_what_the_noise_page_says(covariance, samples, dtype):
    """L z, with LAPACK's Cholesky factor and the normals of dimensions 0 to K - 1."""
    head = {n: t.detach() for n, t in random_head(covariance, rows=20, classes=7).items()}
    z = torch.from_numpy(noise_oracle.normals(5, range(20), range(samples), 7))
    lower = torch.linalg.cholesky(covariance_of(head))
    want = (head["loc"] + torch.einsum("bkj,sbj->sbk", lower, z)) / head["temperature"]
    got = logits({n: t.to(dtype) for n, t in head.items()}, num_samples=samples, seed=5)
    # z and L are of order 1 to 4, and rounded in dtype
    torch.testing.assert_close(got.double(), want, rtol=0, atol=200 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("shape", [(7, 10, 10, 4), (5, 33, 7, 40), (3, 10, 10, 700), (40, 5, 8, 20)])
@pytest.mark.parametrize("covariance", FACTORED)
def test_parity_in_float32(covariance, shape):
    rows, classes, factors, samples = shape
    errors = Errors()
    for seed in range(12):
        exact_head = {n: t.detach() for n, t in random_head(covariance, rows, classes, factors).items()}
        head = cast(exact_head, torch.float32)
        options = {"num_samples": samples, "seed": seed, "row_offset": 3, "sampling": "cholesky"}
        results = [
            functional.mc_statistics(**head, **options), reference.mc_statistics(**head, **options),
            reference.mc_statistics(**exact_head, **options),
        ]  # fmt: skip
        for name in ("mean", "variance", "expected_entropy"):
            errors.add(name, *(getattr(result, name) for result in results))
    errors.check()


@pytest.mark.parametrize("covariance", FACTORED)
def test_the_distribution_is_that_of_the_factored_samples(covariance):
    head = {n: t.detach() for n, t in random_head(covariance, rows=100, classes=6, factors=8).items()}
    samples = 20_000
    first = functional.mc_statistics(**head, num_samples=samples, seed=1)
    second = functional.mc_statistics(**head, num_samples=samples, seed=2, sampling="cholesky")
    z = (first.mean - second.mean) / ((first.variance + second.variance) / samples).sqrt()
    assert z.square().mean().item() == pytest.approx(1, abs=0.25)
    assert z.abs().max() < 5.5
    common = first.mean > 0.1  # where p is not so skewed that its variance takes more samples to know
    assert (first.variance / second.variance - 1)[common].abs().max() < 0.2
    assert (first.expected_entropy - second.expected_entropy).abs().max() < 0.03


@pytest.mark.parametrize("covariance", FACTORED)
def test_covariance_of_the_samples(covariance):
    head = {n: t.detach() for n, t in random_head(covariance, rows=2, classes=5, factors=7).items()}
    samples = 200_000
    drawn = logits(head, num_samples=samples, seed=3)
    for row, want in enumerate(covariance_of(head) / head["temperature"] ** 2):
        deviation = ((want**2 + want.diagonal().outer(want.diagonal())) / samples).sqrt()
        assert ((drawn[:, row].T.cov() - want).abs() < 5 * deviation).all()


@pytest.mark.parametrize("samples", [5, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_singular_covariance(samples, dtype):
    """No diagonal, and a rank below K: the noise stays in the factor's span."""
    rank, classes = 2, 6
    factor = torch.randn(3000, classes, rank, dtype=dtype)
    head = {"loc": torch.zeros(3000, classes, dtype=dtype), "scale": torch.zeros(3000, classes, dtype=dtype)}
    drawn = logits({**head, "cov_factor": factor, "temperature": 1.0}, num_samples=samples, seed=1).double()
    basis, _ = torch.linalg.qr(factor.double())
    outside = drawn - torch.einsum("bkr,bjr,sbj->sbk", basis, basis, drawn)
    assert drawn.abs().max() > 1
    assert outside.abs().max() < (1e-5 if dtype == torch.float32 else 1e-6)
    nothing = functional.mc_statistics(**head, cov_factor=factor * 0, num_samples=samples, sampling="cholesky")
    torch.testing.assert_close(nothing.mean, torch.full_like(nothing.mean, 1 / classes))


@pytest.mark.parametrize("samples", [5, 100])
def test_masks_and_bad_numbers(samples):
    head = {n: t.detach() for n, t in random_head("per_row", rows=20, classes=5, dtype=torch.float32).items()}
    head["loc"][::2, 2] = -math.inf
    head["scale"][3, 1] = math.inf
    head["cov_factor"][5, 1, 0] = math.nan
    statistics = functional.mc_statistics(**head, num_samples=samples, seed=1, sampling="cholesky")
    assert not statistics.mean[::2, 2].any()
    assert statistics.mean[[3, 5]].isnan().all()
    others = [row for row in range(20) if row not in (3, 5)]
    assert statistics.mean[others].isfinite().all()
    assert statistics.expected_entropy[others].isfinite().all()


def test_a_diagonal_is_its_own_factor():
    head = random_head("diagonal")
    options = {"num_samples": 20, "seed": 1}
    got = functional.mc_statistics(**head, **options, sampling="cholesky")
    assert torch.equal(got.mean, functional.mc_statistics(**head, **options).mean)


def test_prefix():
    head = {n: t.detach() for n, t in random_head("per_row", rows=20, classes=3, dtype=torch.float32).items()}
    many = logits(head, num_samples=600, seed=4)
    for samples in (1, 15, 64, 100):
        few = logits(head, num_samples=samples, seed=4)
        torch.testing.assert_close(few, many[:samples], rtol=0, atol=1e-5 if REFERENCE else 0)


@native_only
@pytest.mark.parametrize(("rows", "samples"), [(1, 5000), (40, 20), (30, 700)])
def test_bits_depend_on_neither_threads_nor_batches(rows, samples):
    head = {n: t.detach() for n, t in random_head("per_row", rows, 10, 10, dtype=torch.float32).items()}
    options = {"num_samples": samples, "seed": 5, "sampling": "cholesky"}
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 7):
            torch.set_num_threads(count)
            results.append(functional.mc_statistics(**head, **options).mean)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    start = rows // 3
    part = {n: t if n == "temperature" else t[start:] for n, t in head.items()}
    assert torch.equal(functional.mc_statistics(**part, **options, row_offset=start).mean, results[0][start:])


def test_oracle():
    """noise_oracle's normals have unit covariance: the tests above would not see a scaled z."""
    z = noise_oracle.normals(1, [0], range(20_000), 4)[:, 0]
    np.testing.assert_allclose(np.cov(z.T), np.eye(4), atol=0.05)
