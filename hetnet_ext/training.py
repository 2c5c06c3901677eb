"""Training a whole model with the one-pass loss."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .layers import noise_free
from .representation import logits_of

__all__ = ["nll_loss"]


def nll_loss(model: nn.Module, x: Any, target: Tensor, **options: Any) -> Tensor:
    """``F.nll_loss(model(x), target)`` over the head's ``training_samples``, in one pass over them.

    The loss and all gradients are computed while the samples are drawn; the backward pass of the
    head only scales. The model runs up to the head's parameters, without noise.

    Args:
        model: A model whose output is that of its :class:`HeteroscedasticLayer`.
        x: Inputs of the model.
        target: Classes, (...), as in ``F.nll_loss``.
        **options: As in :meth:`HeteroscedasticLayer.nll_loss`.

    Raises:
        ValueError: The output of ``model`` is not that of its one heteroscedastic layer, or an
            argument is out of range.
    """
    with noise_free() as calls:
        logits = logits_of(model(x))
    if len(calls) != 1 or not calls[0].is_output(logits):
        raise ValueError(
            "model: expected the output of its heteroscedastic layer as its own, and one call of it, got "
            f"{len(calls)} calls" + (" and something after it" if len(calls) == 1 else "")
        )
    return calls[0].parameters.nll_loss(target, **calls[0].layer._loss_options(options))
