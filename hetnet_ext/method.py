"""Turns a classifier into a Het-Net."""

from __future__ import annotations

import copy
from typing import Literal

from torch import nn

from .layers import HeteroscedasticLayer

__all__ = ["het_net"]

_PREDICTOR_TYPES = ("logit_classifier", "probabilistic_classifier")


def het_net(
    base: nn.Module,
    num_factors: int = 10,
    temperature: float = 1.0,
    is_parameter_efficient: bool = False,
    predictor_type: Literal["logit_classifier", "probabilistic_classifier"] = "logit_classifier",
) -> nn.Module:
    """Copies a classifier with its last linear layer replaced by a :class:`HeteroscedasticLayer`.

    The last layer is the ``nn.Linear`` that was registered last (the projection inside an
    attention layer, whose weights that layer reads itself, aside). A softmax registered after
    it is removed, since the new head returns logits, or log-probabilities. The new head's
    weights are drawn afresh; all others are copied.

    Args:
        base: The classifier; it is not changed.
        num_factors: Rank of the low-rank part of the noise covariance.
        temperature: Divides the noisy logits.
        is_parameter_efficient: Share one factor matrix among all inputs.
        predictor_type: What ``base`` returns, logits or probabilities. A softmax is removed where
            it is a module; one that the model calls as a function must go by hand.

    Raises:
        TypeError: ``base`` is not a module.
        ValueError: ``base`` has no linear layer, or has a heteroscedastic layer already.
    """
    if not isinstance(base, nn.Module):
        raise TypeError(f"base: expected a torch.nn.Module, got {type(base).__name__}")
    if predictor_type not in _PREDICTOR_TYPES:
        raise ValueError(f"predictor_type: expected one of {', '.join(_PREDICTOR_TYPES)}, got {predictor_type!r}")
    model = copy.deepcopy(base)
    modules = list(model.modules())
    if any(isinstance(module, HeteroscedasticLayer) for module in modules):
        raise ValueError("base: expected a plain classifier, got one that has a HeteroscedasticLayer already")
    places = [i for i, module in enumerate(modules) if _is_replaceable(module)]
    if not places:
        raise ValueError(f"base: expected a model with a torch.nn.Linear, got a {type(base).__name__} without one")
    last = modules[places[-1]]
    assert isinstance(last, nn.Linear)
    if isinstance(last, nn.LazyLinear) and last.has_uninitialized_params():
        raise ValueError("base: expected initialised parameters, got a LazyLinear that has seen no input")

    head = HeteroscedasticLayer(
        last.in_features, last.out_features, num_factors, temperature, is_parameter_efficient,
        device=last.weight.device, dtype=last.weight.dtype,
    )  # fmt: skip
    replaced: dict[nn.Module, nn.Module] = {last: head.train(last.training)}
    for module in modules[places[-1] + 1 :]:
        if isinstance(module, nn.Softmax | nn.LogSoftmax):
            replaced[module] = nn.Identity()
    for module in modules:
        for name, child in module._modules.items():
            if child in replaced:
                module._modules[name] = replaced[child]
    return replaced.get(model, model)


def _is_replaceable(module: nn.Module) -> bool:
    in_attention = isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear)
    return isinstance(module, nn.Linear) and not in_attention
