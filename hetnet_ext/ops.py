"""The compiled operators in torch's terms: shapes without data, and gradients.

Users call :mod:`hetnet_ext.functional`. Each class here takes tensors in the kernels' form:
``loc`` and ``scale`` (B, K), ``cov_factor`` (B, K, R) or (K, R) or None, ``factor_scale``
(B, R) or None, ``temperature`` () and ``seed`` (2,), followed by ``num_samples``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from . import _library  # noqa: F401  (registers the operators)

#: What computes: the compiled operators.
kernels: Any = torch.ops.hetnet_ext

_NO_REDUCTION = 0  # as torch numbers them

Gradients: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _check_fake(
    loc: Tensor, scale: Tensor, cov_factor: Tensor | None, factor_scale: Tensor | None, temperature: Tensor,
    seed: Tensor, num_samples: int,
) -> None:  # fmt: skip
    """The least that must hold for the shapes of results to mean anything."""
    torch._check(loc.dim() == 2 and scale.shape == loc.shape, lambda: "loc, scale: expected the same shape (B, K)")
    for x in (scale, cov_factor, factor_scale, temperature, seed):
        torch._check(x is None or x.device == loc.device, lambda: "expected all tensors on the device of loc")


@torch.library.register_fake("hetnet_ext::sample_logits")
def _(loc: Tensor, *rest: Any) -> Tensor:
    _check_fake(loc, *rest[:-1])
    return loc.new_empty((rest[-2], *loc.shape))


@torch.library.register_fake("hetnet_ext::mc_log_probs")
def _(loc: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    _check_fake(loc, *rest)
    return loc.new_empty(loc.shape), loc.new_empty(loc.shape)


@torch.library.register_fake("hetnet_ext::mc_statistics")
def _(loc: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    _check_fake(loc, *rest[:-1])
    return loc.new_empty(loc.shape), loc.new_empty(loc.shape), loc.new_empty(loc.shape[:1])


def _fake_gradients(loc: Tensor, scale: Tensor, *rest: Any) -> Gradients:
    _check_fake(loc, scale, *rest)

    def like(x: Tensor | None) -> Tensor:
        return loc.new_empty((0,) if x is None else x.shape)

    return like(loc), like(scale), like(rest[0]), like(rest[1]), loc.new_empty(())


@torch.library.register_fake("hetnet_ext::sample_logits_backward")
def _(grad_out: Tensor, *head: Any) -> Gradients:
    return _fake_gradients(*head)


@torch.library.register_fake("hetnet_ext::mc_log_probs_backward")
def _(grad_out: Tensor, log_probs: Tensor, probs: Tensor, *head: Any) -> Gradients:
    return _fake_gradients(*head)


def _in_transforms() -> bool:
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
    )


def _needs_grad(args: tuple[Any, ...]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args)


class _Function(torch.autograd.Function):
    """A function with ``forward`` and ``setup_context`` apart, as transforms need it, which
    ``call`` applies in one step where it can.

    Where the two are apart, torch binds default arguments by inspecting the signature at every
    call, which takes longer than a small head does.
    """

    one_step: type[torch.autograd.Function]

    def __init_subclass__(cls) -> None:
        class OneStep(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *args: Any) -> Any:
                output = cls.forward(*args)
                cls.setup_context(ctx, args, output)
                return output

            backward = cls.backward

        cls.one_step = OneStep

    @classmethod
    def call(cls, *args: Any) -> Any:
        if _in_transforms():
            return cls.apply(*args)
        return cls.one_step.apply(*args) if _needs_grad(args) else cls.forward(*args)


class _NoDerivative(_Function):
    """A backward operator. It is a function of its inputs for autograd, so that second derivatives
    raise, under ``torch.func`` too, instead of counting as zero."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Gradients) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError(
            "hetnet_ext: the kernels have no second derivatives; hetnet_ext.reference and "
            "HETNET_BACKEND=reference have them"
        )


class SampleLogitsBackward(_NoDerivative):
    """Gradients of :class:`SampleLogits`."""

    @staticmethod
    def forward(
        grad_out: Tensor, loc: Tensor, scale: Tensor, cov_factor: Tensor | None, factor_scale: Tensor | None,
        temperature: Tensor, seed: Tensor, num_samples: int,
    ) -> Gradients:  # fmt: skip
        return kernels.sample_logits_backward(
            grad_out, loc, scale, cov_factor, factor_scale, temperature, seed, num_samples
        )


class McLogProbsBackward(_NoDerivative):
    """Gradients of :class:`McLogProbs`."""

    @staticmethod
    def forward(
        grad_out: Tensor, log_probs: Tensor, probs: Tensor, loc: Tensor, scale: Tensor, cov_factor: Tensor | None,
        factor_scale: Tensor | None, temperature: Tensor, seed: Tensor, num_samples: int,
    ) -> Gradients:  # fmt: skip
        return kernels.mc_log_probs_backward(
            grad_out, log_probs, probs, loc, scale, cov_factor, factor_scale, temperature, seed, num_samples
        )


class McNllLossBackward(_NoDerivative):
    """Gradients of :class:`McNllLoss`: those of the forward pass, times that of the loss."""

    @staticmethod
    def forward(
        grad_loss: Tensor, loc: Tensor, scale: Tensor, cov_factor: Tensor | None, factor_scale: Tensor | None,
        temperature: Tensor, grad_loc: Tensor, grad_scale: Tensor, grad_cov_factor: Tensor, grad_factor_scale: Tensor,
        grad_temperature: Tensor,
    ) -> Gradients:  # fmt: skip
        return _scaled(grad_loss, (grad_loc, grad_scale, grad_cov_factor, grad_factor_scale, grad_temperature))


class McNllLossRowBackward(_NoDerivative):
    """Gradients of :class:`McNllLoss` without a reduction: one more pass, with a weight for each row."""

    @staticmethod
    def forward(
        grad_loss: Tensor, loc: Tensor, scale: Tensor, cov_factor: Tensor | None, factor_scale: Tensor | None,
        temperature: Tensor, seed: Tensor, num_samples: int, target: Tensor, weight: Tensor | None, ignore_index: int,
    ) -> Gradients:  # fmt: skip
        _, *gradients = kernels.mc_nll_loss(
            loc, scale, cov_factor, factor_scale, temperature, seed, num_samples, target, weight, grad_loss,
            ignore_index, _NO_REDUCTION, True,
        )  # fmt: skip
        return tuple(gradients)


def _scaled(grad_loss: Tensor, gradients: Gradients) -> Gradients:
    # The usual gradient is 1. Reading it is free on a CPU only.
    readable = type(grad_loss) is Tensor and grad_loss.device.type == "cpu" and not torch.compiler.is_compiling()
    if readable and grad_loss.item() == 1:
        return gradients
    return tuple(gradient * grad_loss for gradient in gradients)  # type: ignore[return-value]


def _needed(ctx: Any, gradients: Gradients) -> list[Tensor | None]:
    """The gradients that were asked for."""
    return [gradient if need else None for gradient, need in zip(gradients, ctx.needs_input_grad, strict=False)]


def _returned(ctx: Any, gradients: Gradients) -> tuple[Tensor | None, ...]:
    """The gradients that were asked for, then None for ``seed`` and ``num_samples``."""
    return (*_needed(ctx, gradients), None, None)


class SampleLogits(_Function):
    """Noisy logits over the temperature, (S, B, K)."""

    @staticmethod
    def forward(
        loc: Tensor, scale: Tensor, cov_factor: Tensor | None, factor_scale: Tensor | None, temperature: Tensor,
        seed: Tensor, num_samples: int,
    ) -> Tensor:  # fmt: skip
        return kernels.sample_logits(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples, False)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:-1])
        ctx.num_samples = inputs[-1]

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        return _returned(ctx, SampleLogitsBackward.call(grad_out, *ctx.saved_tensors, ctx.num_samples))


class McLogProbs(_Function):
    """Log of the softmax averaged over the samples, and the average itself for the backward; both (B, K)."""

    @staticmethod
    def forward(
        loc: Tensor, scale: Tensor, cov_factor: Tensor | None, factor_scale: Tensor | None, temperature: Tensor,
        seed: Tensor, num_samples: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        return kernels.mc_log_probs(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output, *inputs[:-1])
        ctx.num_samples = inputs[-1]

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if grad_out is None:
            return (None,) * 7
        return _returned(ctx, McLogProbsBackward.call(grad_out, *ctx.saved_tensors, ctx.num_samples))


class McNllLoss(_Function):
    """Negative log-likelihood, () or (B,), and with ``with_grad`` its gradients in the same pass."""

    @staticmethod
    def forward(
        loc: Tensor, scale: Tensor, cov_factor: Tensor | None, factor_scale: Tensor | None, temperature: Tensor,
        seed: Tensor, num_samples: int, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: int,
        with_grad: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        return kernels.mc_nll_loss(
            loc, scale, cov_factor, factor_scale, temperature, seed, num_samples, target, weight, None, ignore_index,
            reduction, with_grad and reduction != _NO_REDUCTION,
        )  # fmt: skip

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        head, (num_samples, target, weight, ignore_index, reduction, _) = inputs[:6], inputs[6:]
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*head, target, weight, *output[1:])
        ctx.num_samples, ctx.ignore_index, ctx.reduction = num_samples, ignore_index, reduction

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        head, (target, weight), gradients = ctx.saved_tensors[:6], ctx.saved_tensors[6:8], ctx.saved_tensors[8:]
        if ctx.reduction == _NO_REDUCTION:
            result = McNllLossRowBackward.call(grad_loss, *head, ctx.num_samples, target, weight, ctx.ignore_index)
        else:
            result = McNllLossBackward.call(grad_loss, *head[:5], *gradients)
        return (*_returned(ctx, result), None, None, None, None, None)

    @classmethod
    def call(cls, *args: Any) -> Tensor:
        """The loss alone."""
        if _in_transforms():
            return cls.apply(*args)[0]
        return cls.one_step.apply(*args[:5], args[5:]) if _needs_grad(args) else cls.forward(*args)[0]


class _McNllLossOneStep(torch.autograd.Function):
    """The gradients wait outside of the saved tensors, so that backward can give them away instead
    of having them copied. Few arguments, because autograd handles each of them."""

    @staticmethod
    def forward(
        ctx: Any, loc: Tensor, scale: Tensor, cov_factor: Tensor | None, factor_scale: Tensor | None,
        temperature: Tensor, rest: tuple[Any, ...],
    ) -> Tensor:  # fmt: skip
        loss, *ctx.gradients = McNllLoss.forward(loc, scale, cov_factor, factor_scale, temperature, *rest)
        ctx.save_for_backward(loc, scale, cov_factor, factor_scale, temperature)
        ctx.rest = rest
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        seed, num_samples, target, weight, ignore_index, reduction, _ = ctx.rest
        if reduction == _NO_REDUCTION:
            gradients = McNllLossRowBackward.call(
                grad_loss, *ctx.saved_tensors, seed, num_samples, target, weight, ignore_index
            )
        else:
            if gradients is None:  # a second backward pass through a retained graph
                _, *gradients = McNllLoss.forward(*ctx.saved_tensors, *ctx.rest)
            if torch.is_grad_enabled():
                gradients = McNllLossBackward.call(grad_loss, *ctx.saved_tensors, *gradients)
            else:
                gradients = _scaled(grad_loss, gradients)
        return (*_needed(ctx, gradients), None)


McNllLoss.one_step = _McNllLossOneStep


@torch.library.register_fake("hetnet_ext::mc_nll_loss")
def _(
    loc: Tensor, scale: Tensor, cov_factor: Tensor | None, factor_scale: Tensor | None, temperature: Tensor,
    seed: Tensor, num_samples: int, target: Tensor, weight: Tensor | None, row_grad: Tensor | None, ignore_index: int,
    reduction: int, with_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    gradients = _fake_gradients(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples)
    if not with_grad:
        gradients = tuple(loc.new_empty((0,)) for _ in gradients)  # type: ignore[assignment]
    return (loc.new_empty(loc.shape[:1] if reduction == _NO_REDUCTION else ()), *gradients)
