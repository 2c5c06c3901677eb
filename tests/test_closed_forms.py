"""Cases whose answer is known without sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from heads import COVARIANCES, random_head
from scipy import integrate, stats

from hetnet_ext import functional


@pytest.mark.parametrize("samples", [1, 7, 700])
def test_no_noise_is_a_plain_log_softmax(samples):
    loc = 3 * torch.randn(30, 7, dtype=torch.float64)
    scale, factor = torch.zeros_like(loc), torch.zeros(7, 4, dtype=torch.float64)
    options = {"num_samples": samples, "temperature": 0.7}
    want = (loc / 0.7).log_softmax(-1)
    torch.testing.assert_close(functional.mc_log_probs(loc, scale, factor, **options), want, rtol=1e-13, atol=1e-13)
    statistics = functional.mc_statistics(loc, scale, factor, **options)
    torch.testing.assert_close(statistics.mean, want.exp(), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(statistics.expected_entropy, torch.special.entr(want.exp()).sum(-1))
    assert statistics.variance.max() <= 1e-30


def expectation(function, mean: float, deviation: float) -> float:
    """E f(N(mean, deviation^2)) by adaptive quadrature."""
    value, error = integrate.quad(
        lambda z: function(mean + deviation * z) * stats.norm.pdf(z),
        -12,
        12,
        points=[-mean / deviation],
        limit=200,
        epsabs=1e-11,
    )
    assert error < 1e-7
    return value


@pytest.mark.parametrize(
    ("gap", "scale", "factor", "temperature"),
    [(0.5, (1.0, 0.5), (0.3, -0.7), 1.0), (-2.0, (0.2, 3.0), (2.0, 1.0), 0.5), (0.0, (1.0, 1.0), (0.0, 0.0), 2.0)],
)
def test_two_classes_against_quadrature(gap, scale, factor, temperature):
    """For K = 2 the difference of the utilities is a normal of one dimension."""
    samples = 400_000
    loc = torch.tensor([[gap, 0.0]], dtype=torch.float64)
    arguments = (
        loc,
        torch.tensor([scale], dtype=torch.float64),
        torch.tensor(factor, dtype=torch.float64)[None, :, None],
    )
    options = {"num_samples": samples, "temperature": temperature, "seed": 1}
    deviation = math.sqrt(scale[0] ** 2 + scale[1] ** 2 + (factor[0] - factor[1]) ** 2) / temperature

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    def entropy(x):
        return np.logaddexp(0, -x) + x * sigmoid(-x)  # of (sigmoid(x), sigmoid(-x))

    mean = expectation(sigmoid, gap / temperature, deviation)
    second = expectation(lambda x: sigmoid(x) ** 2, gap / temperature, deviation)
    want_entropy = expectation(entropy, gap / temperature, deviation)
    entropy_deviation = math.sqrt(
        expectation(lambda x: entropy(x) ** 2, gap / temperature, deviation) - want_entropy**2
    )
    got = functional.mc_statistics(*arguments, **options)
    five_errors = 5 / math.sqrt(samples)
    assert abs(got.mean[0, 0].item() - mean) < five_errors * math.sqrt(second - mean**2)
    assert abs(got.variance[0, 0].item() - (second - mean**2)) < five_errors * 0.5
    assert abs(got.expected_entropy.item() - want_entropy) < five_errors * entropy_deviation
    log_prob = functional.mc_log_probs(*arguments, **options)[0, 0].item()
    assert abs(math.exp(log_prob) - mean) < five_errors * math.sqrt(second - mean**2)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_covariance_of_the_samples(covariance):
    """Sample covariance against diag(scale^2) + F diag(f^2) F^T, over temperature^2."""
    samples = 200_000
    head = {n: t.detach() for n, t in random_head(covariance, rows=3, classes=4).items()}
    logits = functional.sample_logits(**head, num_samples=samples, seed=2)
    for row in range(3):
        want = torch.diag(head["scale"][row] ** 2)
        if "cov_factor" in head:
            factor = head["cov_factor"] if head["cov_factor"].dim() == 2 else head["cov_factor"][row]
            factor = factor * head["factor_scale"][row] if "factor_scale" in head else factor
            want = want + factor @ factor.T
        want = want / head["temperature"] ** 2
        mean_error = (logits[:, row].mean(0) - head["loc"][row] / head["temperature"]).abs()
        assert (mean_error < 5 * (want.diagonal() / samples).sqrt()).all()
        # The variance of an entry of a normal's sample covariance (Isserlis).
        deviation = ((want**2 + want.diagonal().outer(want.diagonal())) / samples).sqrt()
        assert ((logits[:, row].T.cov() - want).abs() < 5 * deviation).all()


def test_mean_converges_with_the_standard_error():
    """Two independent estimates differ as their standard errors say."""
    head = {n: t.detach() for n, t in random_head("per_row", rows=200, classes=5).items()}
    few, many = (functional.mc_statistics(**head, num_samples=n, seed=n) for n in (500, 100_000))
    z = (few.mean - many.mean) / (few.variance / 499).sqrt()
    assert abs(z.square().mean().item() - 1) < 0.25
    assert z.abs().max() < 6


def test_log_probs_are_those_of_the_mean():
    head = {n: t.detach() for n, t in random_head("per_row", rows=20, classes=5).items()}
    for samples in (3, 40, 700):
        options = {"num_samples": samples, "seed": 1}
        mean = functional.mc_statistics(**head, **options).mean
        torch.testing.assert_close(functional.mc_log_probs(**head, **options).exp(), mean, rtol=1e-12, atol=1e-14)
        assert torch.allclose(mean.sum(-1), torch.ones((), dtype=torch.float64), rtol=1e-13)
