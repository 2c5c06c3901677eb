"""The heteroscedastic classification head as a layer."""

from __future__ import annotations

import math
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import functional
from ._arguments import check_integer, check_num_samples, check_temperature_value

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["HeadParameters", "HeteroscedasticLayer"]


class HeadParameters(NamedTuple):
    """What the head computes from features: the first arguments of the operators in :mod:`hetnet_ext.functional`."""

    loc: Tensor
    """(..., K)"""
    scale: Tensor
    """(..., K), positive"""
    cov_factor: Tensor | None
    """(..., K, R), or (K, R) where the layer is parameter-efficient, or None where R = 0"""
    factor_scale: Tensor | None
    """(..., R) where the layer is parameter-efficient, else None"""

    def nll_loss(self, target: Tensor, **options: Any) -> Tensor:
        """:func:`hetnet_ext.functional.mc_nll_loss` of these parameters."""
        return functional.mc_nll_loss(self.loc, self.scale, target, self.cov_factor, self.factor_scale, **options)


class HeadCall:
    """A call of a layer whose noise was left out: see :func:`noise_free`."""

    def __init__(self, layer: HeteroscedasticLayer, features: Tensor) -> None:
        self.layer = layer
        self._features: Tensor | None = features
        self._parameters: HeadParameters | None = layer.head_parameters(features)
        self.output = self._parameters.loc.clone()
        self._version = None if self.output.is_inference() else self.output._version

    @property
    def parameters(self) -> HeadParameters:
        if self._parameters is None:
            assert self._features is not None
            return self.layer.head_parameters(self._features)
        return self._parameters

    def is_output(self, logits: Tensor) -> bool:
        """Whether ``logits`` is what the layer returned, or a view of it, and nobody changed it since."""
        same = logits.data_ptr() == self.output.data_ptr() and logits.stride() == self.output.stride()
        return same and logits.shape == self.output.shape and not self._was_changed()

    def _was_changed(self) -> bool:
        if self._version is None:  # tensors of inference mode do not count their changes
            return not torch.equal(self.output, self.parameters.loc)
        return self.output._version != self._version

    def compact(self) -> None:
        """Forgets the parameters or the features, whichever take more memory."""
        assert self._parameters is not None
        assert self._features is not None
        per_row = [x for x in self._parameters if x is not None and not isinstance(x, nn.Parameter)]
        if sum(x.numel() for x in per_row) > self._features.numel():
            self._parameters = None
        else:
            self._features = None
        del self.output


_calls: ContextVar[list[HeadCall] | None] = ContextVar("hetnet_ext_calls", default=None)


@contextmanager
def noise_free() -> Iterator[list[HeadCall]]:
    """Makes every layer return its ``loc``, and records the calls."""
    calls: list[HeadCall] = []
    token = _calls.set(calls)
    try:
        yield calls
    finally:
        _calls.reset(token)


class HeteroscedasticLayer(nn.Module):
    """Linear classification head with learnable, input-dependent Gaussian noise on its logits.

    The noise has the covariance diag(scale^2) + F F^T, with F of ``num_factors`` columns
    (Collier et al., "Correlated input-dependent label noise in large-scale image
    classification", CVPR 2021, section 3, with the parameter-efficient form as well).

    Drop-in for the layer of the same name in ``probly.layers.torch``: same arguments,
    attributes, initialisation and ``state_dict``.

    Args:
        in_features: Size of the features, D.
        num_classes: Number of classes, K, at least 2.
        num_factors: Rank of the low-rank part of the covariance, R. 0 leaves the diagonal.
        temperature: Divides the noisy logits; above 0.
        is_parameter_efficient: One K x R factor matrix for all inputs, whose columns are
            scaled for each input, instead of a matrix for each input.
        device: Device of the parameters.
        dtype: Type of the parameters.

    Attributes:
        training_samples: Number of samples S of a forward pass. 1 (the default) returns one
            noisy draw of the logits over the temperature; S > 1 returns the log of the
            softmax averaged over S draws, for ``F.nll_loss``.
        temperature: A float, or a parameter of shape () to train it.

    Shape:
        Input (..., D); output (..., K), in float32 or float64.

    Raises:
        ValueError: An argument is out of its range.
    """

    __constants__ = ("in_features", "is_parameter_efficient", "num_classes", "num_factors")

    in_features: int
    num_classes: int
    num_factors: int
    temperature: float | Tensor
    is_parameter_efficient: bool
    training_samples: int

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        num_factors: int = 15,
        temperature: float = 1.0,
        is_parameter_efficient: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(f"dtype: expected a floating-point dtype, got {dtype}")
        self.in_features = check_integer("in_features", in_features, low=1)
        self.num_classes = check_integer("num_classes", num_classes, low=2)
        self.num_factors = check_integer("num_factors", num_factors, low=0)
        self.temperature = check_temperature_value(temperature)
        self.is_parameter_efficient = is_parameter_efficient
        self.training_samples = 1

        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.mu_layer = nn.Linear(in_features, num_classes, **factory)
        self.diag_layer = nn.Linear(in_features, num_classes, **factory)
        self.v_layer: nn.Linear | None = None
        if num_factors > 0:
            outputs = num_factors if is_parameter_efficient else num_classes * num_factors
            self.v_layer = nn.Linear(in_features, outputs, **factory)
            if is_parameter_efficient:
                self.V_matrix = nn.Parameter(torch.empty(num_classes, num_factors, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weights anew: Xavier, a scale near 1, no other biases."""
        nn.init.xavier_uniform_(self.mu_layer.weight)
        nn.init.zeros_(self.mu_layer.bias)
        nn.init.xavier_uniform_(self.diag_layer.weight)
        nn.init.constant_(self.diag_layer.bias, math.log(math.e - 1))  # softplus of it is 1
        if self.v_layer is not None:
            nn.init.xavier_uniform_(self.v_layer.weight)
            nn.init.zeros_(self.v_layer.bias)
            if self.is_parameter_efficient:
                nn.init.xavier_normal_(self.V_matrix)

    def head_parameters(self, x: Tensor) -> HeadParameters:
        """The location, scale and factor of the logits' distribution, for the operators of ``functional``.

        Args:
            x: Features, (..., D).
        """
        if not isinstance(x, Tensor):
            raise TypeError(f"x: expected a tensor, got {type(x).__name__}")
        if x.shape[-1:] != (self.in_features,):
            raise ValueError(f"x: expected shape (..., {self.in_features}), got {tuple(x.shape)}")
        loc, scale = self.mu_layer(x), F.softplus(self.diag_layer(x))
        if self.v_layer is None:
            return HeadParameters(loc, scale, None, None)
        v = self.v_layer(x)
        if self.is_parameter_efficient:
            return HeadParameters(loc, scale, self.V_matrix, v)
        return HeadParameters(loc, scale, v.unflatten(-1, (self.num_classes, self.num_factors)), None)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        if not torch.compiler.is_compiling():
            calls = _calls.get()
            if calls is not None:
                calls.append(HeadCall(self, x))
                return calls[-1].output
        parameters = self.head_parameters(x)
        num_samples = check_num_samples(self.training_samples, "training_samples")
        if num_samples == 1:
            return functional.sample_logits(*parameters, num_samples=1, temperature=self.temperature).squeeze(0)
        return functional.mc_log_probs(*parameters, num_samples=num_samples, temperature=self.temperature)

    def nll_loss(self, x: Tensor, target: Tensor, **options: Any) -> Tensor:
        """``F.nll_loss(self(x), target)`` over ``training_samples`` samples, in one pass over them.

        Args:
            x: Features, (..., D).
            target: Classes, (...).
            **options: ``num_samples`` in place of ``training_samples``, and ``weight``,
                ``ignore_index``, ``reduction``, ``seed``, ``row_offset`` and ``generator`` of
                :func:`hetnet_ext.functional.mc_nll_loss`.
        """
        return self.head_parameters(x).nll_loss(target, **self._loss_options(options))

    def _loss_options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"num_samples": self.training_samples, "temperature": self.temperature, **options}

    def extra_repr(self) -> str:
        temperature = self.temperature
        if isinstance(temperature, Tensor):
            temperature = math.nan if temperature.is_meta else temperature.item()
        return (
            f"in_features={self.in_features}, num_classes={self.num_classes}, num_factors={self.num_factors}, "
            f"temperature={temperature:g}, is_parameter_efficient={self.is_parameter_efficient}"
        )
