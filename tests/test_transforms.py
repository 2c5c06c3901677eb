"""Autograd's transforms and torch.compile."""

from __future__ import annotations

import pytest
import torch
from backend import native_only
from torch import nn

from hetnet_ext import HeteroscedasticLayer, functional, reference, representer

OPERATORS = ["sample_logits", "mc_log_probs"]


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


def scalar(module, operator):
    scale = torch.rand(3, 4, dtype=torch.float64) + 0.1
    return lambda loc: getattr(module, operator)(loc, scale, num_samples=8, seed=1)[..., 0].square().sum()


@pytest.mark.parametrize("operator", OPERATORS)
def test_torch_func_grad(operator):
    loc = torch.randn(3, 4, dtype=torch.float64)
    torch.manual_seed(1)
    got = torch.func.grad(scalar(functional, operator))(loc)
    torch.manual_seed(1)
    torch.testing.assert_close(got, torch.func.grad(scalar(reference, operator))(loc))


@native_only
@pytest.mark.parametrize("operator", OPERATORS)
def test_second_derivatives_raise(operator):
    """Never silent zeros."""
    function = scalar(functional, operator)
    loc = torch.randn(3, 4, dtype=torch.float64)
    message = "the kernels have no second derivatives; hetnet_ext.reference and HETNET_BACKEND=reference have them"
    with pytest.raises(RuntimeError, match=message):
        torch.autograd.functional.hessian(function, loc)
    with pytest.raises(RuntimeError, match=message):
        torch.func.grad(lambda z: torch.func.grad(function)(z).square().sum())(loc)
    leaf = loc.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(leaf), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match=message):
        gradient.square().sum().backward()


@pytest.mark.parametrize("operator", OPERATORS)
def test_second_derivatives_of_the_reference(operator):
    loc = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    scale = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)

    def function(loc, scale):
        return getattr(reference, operator)(loc, scale + 0.1, num_samples=5, seed=1)

    assert torch.autograd.gradgradcheck(function, (loc, scale))


def model(samples: int) -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 8), HeteroscedasticLayer(8, 3, 2))
    model[1].training_samples = samples
    return model


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("grad", [True, False])
def test_compile(samples, grad):
    """One graph, the same noise from the same state of the generator, the same gradients."""
    eager = model(samples)
    compiled = torch.compile(eager, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 5)
    results = []
    for function in (eager, compiled):
        torch.manual_seed(0)
        eager.zero_grad()
        with torch.set_grad_enabled(grad):
            output = function(x)
        if grad:
            output.square().sum().backward()
        results.append([output.detach(), *(p.grad.clone() for p in eager.parameters() if p.grad is not None)])
    assert len(results[0]) == (1 + 8 if grad else 1)
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_compile_with_an_annealed_temperature():
    eager = model(4)
    compiled = torch.compile(eager, backend="aot_eager", fullgraph=True)
    for temperature in (1.0, 0.9, 0.8, 0.7):
        eager[1].temperature = temperature
        torch.manual_seed(0)
        want = eager(torch.ones(2, 5))
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(torch.ones(2, 5)), want)


def test_representer_of_a_compiled_model():
    eager = model(1)
    x = torch.randn(4, 5)
    want = representer(eager, 50, seed=1).represent(x)
    got = representer(torch.compile(eager, backend="aot_eager"), 50, seed=1).represent(x)
    assert torch.equal(got.mean, want.mean)
    eager.compile(backend="aot_eager")
    assert torch.equal(representer(eager, 50, seed=1).represent(x).mean, want.mean)
