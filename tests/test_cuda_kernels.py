"""The CUDA kernels, emulated: the CPU's normals, the reference's values, and nothing that a GPU leaves open.

The tests of the operators run on them as well, with HETNET_TEST_KERNELS=emulated_cuda.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from pathlib import Path

import native_core
import numpy as np
import pytest
import torch
from backend import REFERENCE
from heads import COVARIANCES, cast, gradients, random_head
from parity import Errors

import hetnet_ext
from hetnet_ext import functional

pytestmark = pytest.mark.skipif(REFERENCE, reason="about the compiled kernels")

# (rows, classes, factors, samples): one thread to several warps a sample, one and several samples and rows a
# block, teams with a sum of the factor's gradient each and with one for several, one and several tiles of classes,
# one and several slices of samples.
SHAPES = [
    (1, 2, 1, 1), (9, 10, 10, 4), (70, 3, 5, 2), (3, 10, 10, 70), (2, 6, 3, 300), (5, 33, 7, 40), (2, 101, 15, 9),
    (2, 140, 3, 17), (2, 1000, 15, 5), (2, 1024, 2, 5), (2, 1025, 2, 5), (2, 2100, 3, 6), (2, 90, 70, 9),
    (3, 40, 50, 60), (2, 130, 30, 20), (1, 1100, 50, 9), (2, 7, 90, 70), (3, 140, 3, 150), (1, 1000, 2, 75),
]  # fmt: skip
MOST_SHARED_BYTES = 227 * 1024  # of compute capability 9.0


@pytest.fixture(autouse=True)
def _usual_settings(cuda_emulator):
    yield
    cuda_emulator.set_order("ascending")
    cuda_emulator.set_fuzz(0)
    cuda_emulator.set_shared_bytes(MOST_SHARED_BYTES)


def everything(head, samples, reduction="none"):
    """All results, and gradients where the head has any, by name."""
    options = {"num_samples": samples, "seed": 5, "row_offset": 2**32 - 2}
    rows, classes = head["loc"].shape
    target = torch.arange(rows) * 7 % classes
    results = {}

    def add(name, output, inputs):
        upstream = torch.sin(1 + torch.arange(output.numel(), dtype=torch.float64)).reshape(output.shape)
        results[name] = output.detach()
        if output.requires_grad:
            results.update({f"{name}: {key}": x for key, x in gradients(output, inputs, upstream).items()})

    add("sample_logits", functional.sample_logits(**head, **options), head)
    add("mc_log_probs", functional.mc_log_probs(**head, **options), head)
    add("mc_nll_loss", functional.mc_nll_loss(target=target, **head, **options, reduction=reduction), head)
    for sampling in ("factored", "cholesky") if classes < 200 else ("factored",):  # K^2 numbers a sample take long here
        statistics = functional.mc_statistics(**head, **options, sampling=sampling)
        fields = ("mean", "variance", "expected_entropy")
        results.update({f"{sampling} {name}": getattr(statistics, name) for name in fields})
    return results


def exact(head, samples, monkeypatch, reduction="none"):
    """The same by the reference."""
    with monkeypatch.context() as patch:
        patch.setattr(functional, "_backend", "reference")
        return everything(head, samples, reduction)


def assert_exact(got, want, terms):
    """Both in float64: what is left is the rounding of some tens of operations a sample."""
    for name, value in want.items():
        tolerance = 64 * torch.finfo(torch.float64).eps * (value.abs().max().item() + 1) * math.sqrt(terms)
        torch.testing.assert_close(got[name], value, rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.skipif(hetnet_ext.cpu_capability() == "baseline", reason="the CPU kernels have no fused multiply-add here")
@pytest.mark.parametrize("fuzz", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normals_are_the_cpus_bit_for_bit(cuda_emulator, emulated_ops, monkeypatch, dtype, fuzz):
    """Whatever the last place of the GPU's approximate functions is."""
    cuda_emulator.set_fuzz(fuzz)
    zeros, eye = torch.zeros(3, 61, dtype=dtype), torch.eye(61, dtype=dtype)
    heads = [(zeros, zeros + 1), (zeros, zeros, eye)]  # of the diagonal, and of the factors
    options = {"num_samples": 400, "seed": -(2**40) - 1, "row_offset": 2**32 - 2}
    got = [functional.sample_logits(*head, **options) for head in heads]
    monkeypatch.setattr(hetnet_ext.ops, "kernels", torch.ops.hetnet_ext)
    for emulated, head in zip(got, heads, strict=True):
        assert torch.equal(emulated, functional.sample_logits(*head, **options))


@pytest.mark.skipif(hetnet_ext.cpu_capability() == "baseline", reason="the CPU kernels have no fused multiply-add here")
@pytest.mark.parametrize(("classes", "factors"), [(3, 5), (10, 10), (40, 60), (300, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("covariance", [name for name in COVARIANCES if name != "diagonal"])
def test_cholesky_draws_are_the_cpus_bit_for_bit(emulated_ops, monkeypatch, covariance, dtype, classes, factors):
    """Also with so little memory that rows are factorized in several batches."""
    given = random_head(covariance, 7, classes, factors, dtype=dtype)
    head = {"cov_factor": None, "factor_scale": None, **{name: x.detach() for name, x in given.items()}}
    head["scale"][2, 1] = math.inf
    options = {"num_samples": 9, "seed": torch.tensor([5, 3]), "sampling": "cholesky"}
    for emulated_ops.limits in (None, (1 << 15, 1 << 15, 1 << 12, 3)):
        got = functional.draw_logits(**head, **options)
        with monkeypatch.context() as patch:
            patch.setattr(hetnet_ext.ops, "kernels", torch.ops.hetnet_ext)
            want = functional.draw_logits(**head, **options)
        assert got[:, 2].isnan().all()
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("fuzz", [0, 2])
def test_functions_of_the_softmax(cuda_emulator, fuzz):
    """Errors in ulp, where the GPU's functions are right to half an ulp, and where they are 2 ulp further off."""
    cuda_emulator.set_fuzz(fuzz)
    x = np.concatenate([-np.logspace(-30, np.log10(87), 100_000), np.linspace(-87, 0, 100_000)]).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.max(np.abs(cuda_emulator.exponential(x) - exact) / np.spacing(exact.astype(np.float32))) <= 1.1 + fuzz
    limits = cuda_emulator.exponential(np.array([0, -104, -150, -1e30, -np.inf, np.nan], dtype=np.float32))
    np.testing.assert_array_equal(limits, np.array([1, 0, 0, 0, 0, np.nan], dtype=np.float32))

    x = np.logspace(0, 12, 100_000).astype(np.float32)  # sums of exponentials
    exact = 1 / x.astype(np.float64)
    assert np.max(np.abs(cuda_emulator.reciprocal(x) - exact) / np.spacing(exact.astype(np.float32))) <= 1
    assert np.isnan(cuda_emulator.reciprocal(np.array([0, np.nan], dtype=np.float32))).all()


@pytest.mark.usefixtures("emulated_ops")
def test_what_does_not_fit(cuda_emulator):
    """A clear error, before a launch that fails."""
    cuda_emulator.set_shared_bytes(16 * 1024)
    head = torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(2, 3, 2000)
    with pytest.raises(RuntimeError, match="cov_factor: too many factors for this GPU's shared memory"):
        functional.mc_log_probs(*head, num_samples=3)


@pytest.mark.usefixtures("emulated_ops")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_parity_in_float64(monkeypatch, covariance, shape):
    rows, classes, factors, samples = shape
    head = random_head(covariance, rows, classes, factors)
    assert_exact(everything(head, samples), exact(head, samples, monkeypatch), rows * samples)


@pytest.mark.usefixtures("emulated_ops")
@pytest.mark.parametrize("fuzz", [0, 2])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_parity_in_float32(cuda_emulator, monkeypatch, covariance, fuzz):
    """Also where the GPU's approximate functions are two units in the last place further off."""
    cuda_emulator.set_fuzz(fuzz)
    for rows, classes, factors, samples in [(9, 10, 10, 4), (3, 10, 10, 40), (2, 101, 15, 12), (2, 1100, 3, 5)]:
        errors = Errors()
        for _ in range(8):
            exact_head = random_head(covariance, rows, classes, factors)
            head = cast(exact_head, torch.float32)
            triples = (
                everything(head, samples),
                exact(head, samples, monkeypatch),
                exact(exact_head, samples, monkeypatch),
            )
            for name in triples[0]:
                errors.add(name, *(results[name] for results in triples))
        errors.check()


@pytest.mark.usefixtures("emulated_ops")
@pytest.mark.parametrize(("classes", "factors", "samples"), [(10, 10, 70), (101, 15, 9), (1000, 2, 5), (2100, 3, 6)])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_bits_do_not_depend_on_the_order_of_threads(cuda_emulator, covariance, classes, factors, samples):
    head = random_head(covariance, 5, classes, factors, dtype=torch.float32)
    want = everything(head, samples, "mean")
    for order in ("descending", "random:1", "random:2"):
        cuda_emulator.set_order(order)
        for name, value in everything(head, samples, "mean").items():
            assert torch.equal(value, want[name]), (order, name)


@pytest.mark.usefixtures("emulated_ops")
@pytest.mark.parametrize(("rows", "classes", "factors", "samples"), [(7, 10, 10, 4), (5, 140, 3, 150), (3, 1100, 2, 6)])
def test_bits_of_a_row_do_not_depend_on_its_batch(rows, classes, factors, samples):
    def results(chosen, row_offset):
        of_rows = {name: x if name == "temperature" else x[chosen] for name, x in head.items()}
        inputs = {name: x.detach().requires_grad_() for name, x in of_rows.items()}
        options = {"num_samples": samples, "seed": 5, "row_offset": row_offset}
        statistics = functional.mc_statistics(**inputs, **options)
        log_probs = functional.mc_log_probs(**inputs, **options)
        grads = torch.autograd.grad(log_probs.square().sum(), [inputs["loc"], inputs["cov_factor"]])
        return [statistics.mean, statistics.variance, statistics.expected_entropy, log_probs, *grads]

    head = random_head("per_row_scaled", rows, classes, factors, dtype=torch.float32)
    want = results(slice(None), 0)
    backwards = torch.arange(rows).flip(0)
    for chosen, row_offset in ((slice(2, None), 2), (backwards, backwards), (backwards[1:], backwards[1:])):
        for whole, part in zip(want, results(chosen, row_offset), strict=True):
            assert torch.equal(whole[chosen], part)


@pytest.mark.parametrize("shared_kilobytes", [12, 48, 99, 227])
@pytest.mark.parametrize("limits", [None, (1 << 11, 1 << 12, 1 << 12, 3)], ids=["usual", "little memory"])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_plans(cuda_emulator, emulated_ops, monkeypatch, covariance, limits, shared_kilobytes):
    """The same results on any GPU, and however little memory there is to work in."""
    cuda_emulator.set_shared_bytes(shared_kilobytes * 1024)
    emulated_ops.limits = limits
    for rows, classes, factors, samples in [(17, 10, 10, 20), (3, 10, 30, 600), (7, 300, 40, 9), (6, 1100, 3, 11)]:
        head = random_head(covariance, rows, classes, factors)
        assert_exact(everything(head, samples), exact(head, samples, monkeypatch), rows * samples)


@pytest.mark.usefixtures("emulated_ops")
def test_masked_tiles_far_from_zero(monkeypatch):
    """Utilities whose exponentials all underflow, beside a tile of classes without any, whose sum is 0."""
    for offset in (-1e4, 1e4):
        head = random_head("per_row", 2, 2100, 2)
        with torch.no_grad():
            head["loc"] += offset
            head["loc"][:, 1024:2048] = -math.inf
        got, want = everything(head, 5), exact(head, 5, monkeypatch)
        for name in ("mc_log_probs", "mc_nll_loss", "factored mean", "factored variance", "factored expected_entropy"):
            torch.testing.assert_close(got[name], want[name], rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("emulated_ops")
def test_slices_far_from_zero(monkeypatch):
    """Probabilities that underflow in some slices of the samples, in all of them, or in none, and masked ones."""
    head = {name: x.detach() for name, x in random_head("per_row", 3, 140, 2).items()}
    head["scale"] *= 40
    head["loc"][1, :100] -= 1000
    head["loc"][2, 7] = -math.inf
    got, want = everything(head, 150), exact(head, 150, monkeypatch)
    assert want["mc_log_probs"][1].min() < -800
    for name in ("mc_log_probs", "factored mean", "factored variance", "factored expected_entropy"):
        torch.testing.assert_close(got[name], want[name], rtol=1e-11, atol=1e-14)


@pytest.mark.usefixtures("emulated_ops")
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_a_target_that_is_no_class_makes_nan(reduction):
    """To raise would wait for the GPU."""
    loc, scale = torch.zeros(4, 3, requires_grad=True), torch.ones(4, 3)
    for wrong in (3, -1, 2**40):
        target = torch.tensor([0, wrong, -100, 2])
        loss = functional.mc_nll_loss(loc, scale, target, num_samples=5, seed=1, reduction=reduction)
        assert loss.isnan().tolist() == ([False, True, False, False] if reduction == "none" else True)


@pytest.fixture(scope="module")
def compiler() -> str:
    return os.environ.get("CXX") or shutil.which("c++") or "g++"


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_sanitizers(tmp_path, compiler, sanitizers):
    """No step out of bounds, no undefined behaviour, no missing barrier: every kernel, each kind of plan."""
    empty = tmp_path / "empty.cpp"
    empty.write_text("int main() {}\n")
    flags = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    if subprocess.run([compiler, *flags, str(empty), "-o", str(tmp_path / "empty")], capture_output=True).returncode:
        pytest.skip(f"{compiler} does not link -fsanitize={sanitizers}")
    program = tmp_path / "sanitized"
    root: Path = native_core.ROOT
    subprocess.run(
        [
            compiler, "-std=c++17", "-Og", "-g", "-Wno-unknown-pragmas", "-ffp-contract=off", *flags,
            *native_core.cuda_emulator_flags(), f"-I{root / 'csrc'}",
            str(root / "tests" / "native" / "cuda_sanitized.cpp"), "-o", str(program),
        ],
        check=True,
    )  # fmt: skip
    slow = sanitizers == "thread"
    result = subprocess.run([str(program), *(["float32 only"] if slow else [])], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.endswith("all kernels ran\n")
