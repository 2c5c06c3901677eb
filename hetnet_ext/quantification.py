"""Uncertainty of a representation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .representation import HetNetRepresentation

__all__ = ["AleatoricDecomposition", "quantify"]


@dataclass(frozen=True, eq=False)
class AleatoricDecomposition:
    """Uncertainty of a Het-Net. It models label noise only: there is no total or epistemic part.

    Attributes:
        aleatoric: (...) expected entropy of the samples, in nats.
    """

    aleatoric: Tensor


def quantify(representation: HetNetRepresentation) -> AleatoricDecomposition:
    """Decomposes the uncertainty of a representation.

    Raises:
        TypeError: ``representation`` is not a :class:`HetNetRepresentation`.
    """
    if not isinstance(representation, HetNetRepresentation):
        raise TypeError(f"representation: expected a HetNetRepresentation, got {type(representation).__name__}")
    return AleatoricDecomposition(representation.expected_entropy)
