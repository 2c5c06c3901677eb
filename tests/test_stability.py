"""Finite results where a plain softmax-mean-log is not, and inputs that are not finite."""

from __future__ import annotations

import math

import pytest
import torch
from backend import not_emulated
from heads import COVARIANCES, cast, gradients, random_head

from hetnet_ext import functional, reference

SAMPLES = [1, 5, 40, 700]
# classes and factors: few, many, and so many numbers that the classes are worked on in tiles
SIZES = [(5, 3), (130, 3), (530, 120)]


def plain_log_probs(head, samples):
    """What the peers compute."""
    return reference.sample_logits(**head, num_samples=samples, seed=3).softmax(-1).mean(0).log()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("case", ["gap", "no scale", "large scale"])
@pytest.mark.parametrize(("classes", "factors"), SIZES)
def test_finite_values_and_gradients(classes, factors, case, covariance, samples, dtype):
    exact_head = random_head(covariance, 20 if factors < 100 else 3, classes, factors)
    with torch.no_grad():
        if case == "gap":
            exact_head["loc"][:, 1] += 1e4
        elif case == "no scale":
            exact_head["loc"][:, 1] += 1e4
            exact_head["scale"].zero_()
        else:
            exact_head["scale"].mul_(1e6)
    head = cast(exact_head, dtype)
    if case != "large scale":  # there a class is only hopeless where there are few samples
        assert torch.isneginf(plain_log_probs(head, samples)).any()
        assert torch.autograd.grad(plain_log_probs(head, samples).sum(), head["loc"])[0].isnan().any()

    log_probs = functional.mc_log_probs(**head, num_samples=samples, seed=3)
    exact = reference.mc_log_probs(**exact_head, num_samples=samples, seed=3)
    assert log_probs.isfinite().all()
    # Differences of utilities: what rounding them to their own last place allows.
    utility = reference.sample_logits(**exact_head, num_samples=samples, seed=3).abs().max().item()
    tolerance = 8 * torch.finfo(dtype).eps * utility
    torch.testing.assert_close(log_probs.double(), exact, rtol=0, atol=tolerance)

    upstream = torch.randn(log_probs.shape)
    got, want = gradients(log_probs, head, upstream), gradients(exact, exact_head, upstream)
    for name in head:
        assert got[name].isfinite().all()
        # A weight exp(log p_s - log p) has the relative error that its exponent has absolutely.
        bound = 4 * tolerance * (1 + want[name].abs().max().item())
        assert (got[name].double() - want[name]).abs().max() <= bound


@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize(("classes", "factors"), SIZES)
def test_minus_infinity_masks_a_class(classes, factors, covariance, samples):
    """As if the class were not there."""
    head = random_head(covariance, 20 if factors < 100 else 3, classes, factors, dtype=torch.float32)
    with torch.no_grad():
        head["loc"][::2, 2] = -math.inf
    options = {"num_samples": samples, "seed": 3}
    log_probs = functional.mc_log_probs(**head, **options)
    statistics = functional.mc_statistics(**head, **options)
    logits = functional.sample_logits(**head, **options)
    assert torch.isneginf(log_probs[::2, 2]).all()
    assert torch.isneginf(logits[:, ::2, 2]).all()
    assert not statistics.mean[::2, 2].any()
    assert not statistics.variance[::2, 2].any()
    rest = [k for k in range(classes) if k != 2]
    without = reference.sample_logits(**head, **options)[:, ::2, rest].log_softmax(-1)
    averaged = without.logsumexp(0) - math.log(samples)
    torch.testing.assert_close(log_probs[::2, rest], averaged, rtol=1e-5, atol=1e-5)
    entropy = -(without.exp() * without).sum(-1).mean(0)
    torch.testing.assert_close(statistics.expected_entropy[::2], entropy, rtol=1e-5, atol=1e-6)

    upstream = torch.randn(log_probs.shape)
    got = gradients(log_probs, head, upstream)
    exact_head = cast(head, torch.float64)
    want = gradients(reference.mc_log_probs(**exact_head, **options), exact_head, upstream)
    for name in head:
        assert got[name].isfinite().all()
        torch.testing.assert_close(got[name].double(), want[name], rtol=1e-4, atol=1e-4 * float(want[name].abs().max()))
    for name in ("loc", "scale"):
        assert not got[name][::2, 2].any()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("argument", ["loc", "scale", "cov_factor", "factor_scale"])
@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize(("classes", "factors"), SIZES)
def test_nan_and_infinity_stay_in_their_row(classes, factors, argument, bad, samples):
    head = {n: t.detach() for n, t in random_head("per_row_scaled", 20, classes, factors, dtype=torch.float32).items()}
    good_head = {name: tensor.clone() for name, tensor in head.items()}
    head[argument][7].view(-1)[1] = bad
    head, good_head = cast(head, torch.float32), cast(good_head, torch.float32)
    options = {"num_samples": samples, "seed": 3}
    others = [row for row in range(20) if row != 7]
    outputs = [functional.mc_log_probs(**arguments, **options) for arguments in (head, good_head)]
    assert outputs[0][7].isnan().all()
    assert torch.equal(outputs[0][others], outputs[1][others])
    statistics = [functional.mc_statistics(**arguments, **options) for arguments in (head, good_head)]
    for a, b in zip(statistics[0][:3], statistics[1][:3], strict=True):
        assert a[7].isnan().all()
        assert torch.equal(a[others], b[others])
    upstream = torch.ones_like(outputs[0])
    got, want = (
        gradients(output, arguments, upstream) for output, arguments in zip(outputs, (head, good_head), strict=True)
    )
    for name in ("loc", "scale", "cov_factor", "factor_scale"):
        assert got[name][7].isnan().any()
        assert torch.equal(got[name][others], want[name][others])


@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize(("classes", "factors"), SIZES)
def test_all_classes_masked_is_nan(classes, factors, samples):
    """As in log_softmax: there is no distribution over no classes."""
    head = torch.full((2, classes), -math.inf), torch.ones(2, classes), torch.ones(2, classes, factors)
    assert functional.mc_log_probs(*head, num_samples=samples, seed=0).isnan().all()
    assert functional.mc_statistics(*head, num_samples=samples, seed=0).mean.isnan().all()


@pytest.mark.parametrize("samples", SAMPLES)
def test_a_masked_tile_of_classes(samples):
    """All of the first 260 classes: as if they were not there."""
    head = random_head("per_row", 3, 600, 120, dtype=torch.float32)
    with torch.no_grad():
        head["loc"][:, :260] = -math.inf
    log_probs = functional.mc_log_probs(**head, num_samples=samples, seed=3)
    without = reference.sample_logits(**head, num_samples=samples, seed=3)[..., 260:].log_softmax(-1)
    assert torch.isneginf(log_probs[:, :260]).all()
    torch.testing.assert_close(log_probs[:, 260:], without.logsumexp(0) - math.log(samples), rtol=1e-5, atol=1e-4)
    entropy = functional.mc_statistics(**head, num_samples=samples, seed=3).expected_entropy
    torch.testing.assert_close(entropy, -(without.exp() * without).sum(-1).mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("samples", [5, 40, 700])
@pytest.mark.parametrize("offset", [-300.0, -1e4, -1e7, -1e20])
def test_gradient_far_from_zero(offset, samples, dtype):
    """Of a class that is hopeless in every sample: d log p_0 / d loc_0 is 1, however far log p_0 is rounded."""
    loc = torch.tensor([[offset, 0.0, 0.5]], dtype=dtype, requires_grad=True)
    functional.mc_log_probs(loc, torch.ones(1, 3, dtype=dtype), num_samples=samples, seed=1)[0, 0].backward()
    # The utilities themselves are rounded to their last place, which for float32 at 1e7 is 1.
    assert abs(loc.grad[0, 0].item() - 1) <= 32 * torch.finfo(dtype).eps * math.sqrt(samples)
    assert abs(loc.grad.sum().item()) <= 64 * torch.finfo(dtype).eps * math.sqrt(samples)


@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize(("classes", "factors"), SIZES)
def test_masked_classes_have_no_gradient_in_sample_logits(classes, factors, samples):
    head = random_head("per_row_scaled", 20 if factors < 100 else 3, classes, factors, dtype=torch.float32)
    with torch.no_grad():
        head["loc"][::2, 2] = -math.inf
    logits = functional.sample_logits(**head, num_samples=samples, seed=3)
    upstream = torch.randn(logits.shape)
    upstream[:, ::2, 2] = math.nan
    got = gradients(logits, head, upstream)
    exact_head = cast(head, torch.float64)
    exact = reference.sample_logits(**exact_head, num_samples=samples, seed=3)
    want = gradients(exact, exact_head, upstream.nan_to_num(0))
    for name in head:
        assert got[name].isfinite().all()
        torch.testing.assert_close(got[name].double(), want[name], rtol=1e-4, atol=1e-5 * samples)
    assert not got["loc"][::2, 2].any()


@not_emulated
@pytest.mark.parametrize("operator", ["sample_logits", "mc_log_probs", "mc_statistics"])
def test_a_temperature_that_cannot_be_read_makes_nan(operator):
    """As on a GPU or in a compiled graph, where a check would cost a synchronisation."""
    loc, scale = torch.zeros(2, 3), torch.ones(2, 3)
    for value in (-1.0, 0.0, math.nan):

        def function(temperature):
            return getattr(functional, operator)(loc, scale, num_samples=20, temperature=temperature, seed=1)

        result = torch.compile(function, backend="eager", fullgraph=True)(torch.tensor(value))
        assert (result if isinstance(result, torch.Tensor) else result.mean).isnan().all()
