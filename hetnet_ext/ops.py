"""The compiled operators in torch's terms: shapes without data, and gradients.

Users call :mod:`hetnet_ext.functional`. Each class here takes tensors in the kernels' form:
``loc`` and ``scale`` (B, K), ``cov_factor`` (B, K, R) or (K, R) or None, ``factor_scale``
(B, R) or None, ``temperature`` () and ``seed`` (2,), followed by ``num_samples``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import _library  # noqa: F401  (registers the operators)

_ops = torch.ops.hetnet_ext

Gradients: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@torch.library.register_fake("hetnet_ext::sample_logits")
def _(loc: Tensor, scale: Tensor, cov_factor: Tensor | None, factor_scale: Tensor | None, temperature: Tensor,
      seed: Tensor, num_samples: int) -> Tensor:  # fmt: skip
    return loc.new_empty((num_samples, *loc.shape))


@torch.library.register_fake("hetnet_ext::mc_log_probs")
def _(loc: Tensor, scale: Tensor, cov_factor: Tensor | None, factor_scale: Tensor | None, temperature: Tensor,
      seed: Tensor, num_samples: int) -> Tensor:  # fmt: skip
    return loc.new_empty(loc.shape)


@torch.library.register_fake("hetnet_ext::mc_statistics")
def _(loc: Tensor, scale: Tensor, cov_factor: Tensor | None, factor_scale: Tensor | None, temperature: Tensor,
      seed: Tensor, num_samples: int) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return loc.new_empty(loc.shape), loc.new_empty(loc.shape), loc.new_empty(loc.shape[:1])


def _fake_gradients(loc: Tensor, cov_factor: Tensor | None, factor_scale: Tensor | None) -> Gradients:
    def like(x: Tensor | None) -> Tensor:
        return loc.new_empty((0,) if x is None else x.shape)

    return like(loc), like(loc), like(cov_factor), like(factor_scale), loc.new_empty(())


@torch.library.register_fake("hetnet_ext::sample_logits_backward")
def _(grad_out: Tensor, loc: Tensor, scale: Tensor, cov_factor: Tensor | None, factor_scale: Tensor | None,
      temperature: Tensor, seed: Tensor, num_samples: int) -> Gradients:  # fmt: skip
    return _fake_gradients(loc, cov_factor, factor_scale)


@torch.library.register_fake("hetnet_ext::mc_log_probs_backward")
def _(grad_out: Tensor, log_probs: Tensor, loc: Tensor, scale: Tensor, cov_factor: Tensor | None,
      factor_scale: Tensor | None, temperature: Tensor, seed: Tensor, num_samples: int) -> Gradients:  # fmt: skip
    return _fake_gradients(loc, cov_factor, factor_scale)


def _returned(ctx: Any, gradients: Gradients) -> tuple[Tensor | None, ...]:
    """The gradients that were asked for, then None for ``seed`` and ``num_samples``."""
    needed = zip(gradients, ctx.needs_input_grad[:5], strict=True)
    return (*(gradient if need else None for gradient, need in needed), None, None)


class SampleLogits(torch.autograd.Function):
    """Noisy logits over the temperature, (S, B, K)."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        return _ops.sample_logits(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:-1])
        ctx.num_samples = inputs[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        return _returned(ctx, _ops.sample_logits_backward(grad_out, *ctx.saved_tensors, ctx.num_samples))


class McLogProbs(torch.autograd.Function):
    """Log of the softmax averaged over the samples, (B, K)."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        return _ops.mc_log_probs(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output, *inputs[:-1])
        ctx.num_samples = inputs[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        return _returned(ctx, _ops.mc_log_probs_backward(grad_out, *ctx.saved_tensors, ctx.num_samples))
