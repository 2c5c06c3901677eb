"""het_net: which layer is replaced, and what is left alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from hetnet_ext import HeteroscedasticLayer, het_net
from hetnet_ext.models import MLPClassifier


def layers(model: nn.Module) -> list[str]:
    return [type(module).__name__ for module in model.modules() if not list(module.children())]


def test_replaces_the_last_linear_layer():
    base = MLPClassifier(8, 16, 3)
    before = copy.deepcopy(base.state_dict())
    model = het_net(base, num_factors=4, temperature=0.7, is_parameter_efficient=True)
    head = model.layers[-1]
    assert isinstance(head, HeteroscedasticLayer)
    assert (head.in_features, head.num_classes, head.num_factors) == (16, 3, 4)
    assert (head.temperature, head.is_parameter_efficient) == (0.7, True)
    assert isinstance(model, MLPClassifier)
    assert model(torch.zeros(5, 8)).shape == (5, 3)
    # the base is as it was, and shares nothing with the copy
    assert isinstance(base.layers[-1], nn.Linear)
    for name, tensor in base.state_dict().items():
        assert torch.equal(tensor, before[name])
    with torch.no_grad():
        model.layers[0].weight.zero_()
    assert torch.equal(base.layers[0].weight, before["layers.0.weight"])


def test_keeps_the_other_weights():
    base = MLPClassifier(8, 16, 3)
    model = het_net(base)
    for index in (0, 2):
        assert torch.equal(model.layers[index].weight, base.layers[index].weight)


def test_defaults():
    head = het_net(nn.Linear(8, 3))
    assert (head.num_factors, head.temperature, head.is_parameter_efficient) == (10, 1.0, False)


@pytest.mark.parametrize("predictor_type", ["logit_classifier", "probabilistic_classifier"])
@pytest.mark.parametrize("link", [nn.Softmax(-1), nn.LogSoftmax(-1)])
def test_removes_the_softmax_after_it(link, predictor_type):
    base = nn.Sequential(nn.Linear(8, 16), nn.Softmax(-1), nn.Linear(16, 3), link)
    model = het_net(base, predictor_type=predictor_type)
    assert [type(layer) for layer in model] == [nn.Linear, nn.Softmax, HeteroscedasticLayer, nn.Identity]
    assert isinstance(base[3], type(link))


def test_a_linear_layer_alone():
    assert isinstance(het_net(nn.Linear(8, 3)), HeteroscedasticLayer)


def test_layers_after_the_linear_one_stay():
    model = het_net(nn.Sequential(nn.Linear(8, 3), nn.Dropout(0.1)))
    assert isinstance(model[0], HeteroscedasticLayer)
    assert isinstance(model[1], nn.Dropout)


def test_a_layer_in_two_places():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 3)
            self.second = self.first

    model = het_net(Tied())
    assert isinstance(model.first, HeteroscedasticLayer)
    assert model.second is model.first


def test_not_the_projection_of_an_attention_layer():
    """It is a linear layer, but the attention reads its weights and never calls it."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 3)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return self.head(self.attention(x, x, x)[0])

    model = het_net(Attention())
    assert isinstance(model.head, HeteroscedasticLayer)
    assert model(torch.zeros(2, 4, 8)).shape == (2, 4, 3)


def test_device_dtype_and_mode_are_those_of_the_replaced_layer():
    model = het_net(MLPClassifier(8, 16, 3).double().eval())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert not any(module.training for module in model.modules())
    assert het_net(nn.Linear(8, 3, device="meta")).mu_layer.weight.is_meta


def test_state_dict_loads():
    first, second = (het_net(MLPClassifier(8, 16, 3)) for _ in range(2))
    second.load_state_dict(first.state_dict())
    x = torch.randn(4, 8)
    torch.manual_seed(0)
    want = first(x)
    torch.manual_seed(0)
    assert torch.equal(second(x), want)
