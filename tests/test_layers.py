"""The layer: what it computes, how it starts, and what it shares with probly's."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hetnet_ext import HeteroscedasticLayer, functional, reference

FORMS = [{"num_factors": 4}, {"num_factors": 4, "is_parameter_efficient": True}, {"num_factors": 0}]


def formula(layer: HeteroscedasticLayer, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The logits for given noise, written out from the layer's parameters."""
    eps, eta = noise[..., : layer.num_classes], noise[..., layer.num_classes :]
    logits = layer.mu_layer(x) + F.softplus(layer.diag_layer(x)) * eps
    if layer.num_factors:
        v = layer.v_layer(x)
        if layer.is_parameter_efficient:
            logits = logits + (v * eta) @ layer.V_matrix.T
        else:
            factor = v.reshape(*x.shape[:-1], layer.num_classes, layer.num_factors)
            logits = logits + (factor @ eta[..., None]).squeeze(-1)
    return logits / layer.temperature


def noise_of_next_call(samples: int, rows: int, dimensions: int) -> torch.Tensor:
    """The noise that a call draws after the current state of the global generator."""
    state = torch.get_rng_state()
    seed = torch.randint(-(2**63), 2**63 - 1, (1,))
    torch.set_rng_state(state)
    return reference.standard_normals(
        torch.cat((seed, torch.zeros(1).long())), samples, rows, dimensions, torch.float32
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_forward(form, temperature):
    layer = HeteroscedasticLayer(8, 5, temperature=temperature, **form)
    x = torch.randn(6, 8)
    noise = noise_of_next_call(1, 6, 5 + layer.num_factors)
    torch.testing.assert_close(layer(x), formula(layer, x, noise[0]), rtol=1e-5, atol=1e-5)

    layer.training_samples = 7
    noise = noise_of_next_call(7, 6, 5 + layer.num_factors)
    want = formula(layer, x, noise).softmax(-1).mean(0).log()
    torch.testing.assert_close(layer(x), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch", [(), (6,), (2, 3)])
def test_leading_dimensions(form, batch):
    layer = HeteroscedasticLayer(8, 5, **form)
    x = torch.randn(*batch, 8)
    for samples in (1, 4):
        layer.training_samples = samples
        torch.manual_seed(1)
        got = layer(x)
        torch.manual_seed(1)
        assert torch.equal(got, layer(x.reshape(-1, 8)).reshape(*batch, 5))


@pytest.mark.parametrize("form", FORMS)
def test_gradients_reach_every_parameter(form):
    layer = HeteroscedasticLayer(8, 5, **form)
    layer.training_samples = 4
    x, target = torch.randn(6, 8), torch.randint(5, (6,))
    noise = noise_of_next_call(4, 6, 5 + layer.num_factors)
    F.nll_loss(layer(x), target).backward()
    got = {name: parameter.grad.clone() for name, parameter in layer.named_parameters()}
    layer.zero_grad()
    F.nll_loss(formula(layer, x, noise).log_softmax(-1).logsumexp(0) - math.log(4), target).backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad.abs().max() > 0
        torch.testing.assert_close(got[name], parameter.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_state_dict_is_that_of_probly(form):
    """Names and shapes, as probly.layers.torch.HeteroscedasticLayer has them."""
    layer = HeteroscedasticLayer(8, 5, **form)
    want = {
        "mu_layer.weight": (5, 8), "mu_layer.bias": (5,), "diag_layer.weight": (5, 8), "diag_layer.bias": (5,),
    }  # fmt: skip
    if form.get("is_parameter_efficient"):
        want |= {"v_layer.weight": (4, 8), "v_layer.bias": (4,), "V_matrix": (5, 4)}
    elif form["num_factors"]:
        want |= {"v_layer.weight": (20, 8), "v_layer.bias": (20,)}
    assert {name: tuple(tensor.shape) for name, tensor in layer.state_dict().items()} == want
    other = HeteroscedasticLayer(8, 5, **form)
    assert other.load_state_dict(layer.state_dict()).missing_keys == []
    torch.manual_seed(3)
    first = layer(torch.ones(2, 8))
    torch.manual_seed(3)
    assert torch.equal(first, other(torch.ones(2, 8)))


def test_attributes_and_defaults_are_those_of_probly():
    layer = HeteroscedasticLayer(8, 5)
    assert (layer.in_features, layer.num_classes, layer.num_factors) == (8, 5, 15)
    assert (layer.temperature, layer.is_parameter_efficient, layer.training_samples) == (1.0, False, 1)
    assert isinstance(layer.mu_layer, nn.Linear)
    assert isinstance(layer.v_layer, nn.Linear)


def test_initialisation():
    """Xavier bounds, a scale of 1 where the features are 0, other biases 0."""
    layer = HeteroscedasticLayer(300, 40, num_factors=6, is_parameter_efficient=True)
    for linear in (layer.mu_layer, layer.diag_layer, layer.v_layer):
        bound = math.sqrt(6 / (linear.in_features + linear.out_features))
        assert linear.weight.abs().max() <= bound
        assert linear.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert layer.V_matrix.std().item() == pytest.approx(math.sqrt(2 / 46), rel=0.2)
    assert not layer.mu_layer.bias.any()
    assert not layer.v_layer.bias.any()
    loc, scale, _, _ = layer.head_parameters(torch.zeros(1, 300))
    assert not loc.any()
    torch.testing.assert_close(scale, torch.ones(1, 40))


def test_head_parameters_feed_the_operators():
    layer = HeteroscedasticLayer(8, 5, num_factors=2)
    layer.training_samples = 9
    x = torch.randn(3, 8)
    torch.manual_seed(2)
    got = layer(x)
    torch.manual_seed(2)
    assert torch.equal(got, functional.mc_log_probs(*layer.head_parameters(x), num_samples=9))


def test_trainable_temperature():
    layer = HeteroscedasticLayer(8, 5)
    layer.training_samples = 4
    layer.temperature = nn.Parameter(torch.tensor(1.5))
    assert "temperature" in dict(layer.named_parameters())
    F.nll_loss(layer(torch.randn(20, 8)), torch.randint(5, (20,))).backward()
    assert layer.temperature.grad.abs() > 0
    assert "temperature=1.5" in repr(layer)


def test_device_and_dtype():
    layer = HeteroscedasticLayer(8, 5, num_factors=2, is_parameter_efficient=True, device="cpu", dtype=torch.float64)
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.float64}
    assert layer(torch.zeros(2, 8, dtype=torch.float64)).dtype == torch.float64
    assert layer.float()(torch.zeros(2, 8)).dtype == torch.float32
    half = layer.bfloat16()(torch.zeros(2, 8, dtype=torch.bfloat16))
    assert half.dtype == torch.float32  # sampled in float32


def test_autocast():
    layer = HeteroscedasticLayer(8, 5)
    layer.training_samples = 4
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_probs = layer(torch.randn(6, 8))
    assert log_probs.dtype == torch.float32
    log_probs.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_copies():
    layer = HeteroscedasticLayer(8, 5)
    layer.training_samples = 3
    x = torch.randn(2, 8)
    results = []
    for clone in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.manual_seed(0)
        results.append(clone(x))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_repr():
    layer = HeteroscedasticLayer(8, 5, num_factors=2, temperature=0.5, is_parameter_efficient=True)
    assert "in_features=8, num_classes=5, num_factors=2, temperature=0.5, is_parameter_efficient=True" in repr(layer)


def test_it_learns_where_labels_are_noisy():
    """Labels flip with probability 0.4 where x > 0, and never elsewhere: the head finds both."""
    torch.manual_seed(0)
    x = torch.rand(2000, 1) * 2 - 1
    noisy = x[:, 0] > 0
    target = torch.where(noisy & (torch.rand(2000) < 0.4), 1, 0)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), HeteroscedasticLayer(32, 2, num_factors=2))
    model[-1].training_samples = 20
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        F.nll_loss(model(x), target).backward()
        optimizer.step()
    loc, scale, factor, _ = model[-1].head_parameters(model[:-1](x).detach())
    mean = functional.mc_statistics(loc, scale, factor, num_samples=2000).mean
    assert mean[x[:, 0] > 0.2, 1].mean().item() == pytest.approx(0.4, abs=0.06)
    assert mean[x[:, 0] < -0.2, 1].mean().item() < 0.03
