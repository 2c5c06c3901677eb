"""Models of the examples."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["MLPClassifier"]


class MLPClassifier(nn.Module):
    """Two hidden layers with ReLU, then logits.

    Args:
        in_features: Size of the input.
        hidden_features: Size of both hidden layers.
        out_features: Number of classes.

    Shape:
        Input (..., in_features); output (..., out_features).
    """

    def __init__(self, in_features: int, hidden_features: int, out_features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(in_features, hidden_features),
            nn.ReLU(),
            nn.Linear(hidden_features, hidden_features),
            nn.ReLU(),
            nn.Linear(hidden_features, out_features),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
