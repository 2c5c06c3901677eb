"""The head in vectorised PyTorch: what a careful user writes without a kernel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def logits(loc: Tensor, scale: Tensor, factor: Tensor | None, factor_scale: Tensor | None, samples: int) -> Tensor:
    """(S, B, K). ``factor`` is (B, K, R), or (K, R) and then scaled by ``factor_scale``, (B, R)."""
    noise = scale * torch.randn(samples, *loc.shape, device=loc.device)
    if factor is None:
        return loc + noise
    eta = torch.randn(samples, len(loc), factor.shape[-1], device=loc.device)
    if factor_scale is None:
        return loc + noise + torch.einsum("bkr,sbr->sbk", factor, eta)
    return loc + noise + torch.einsum("kr,sbr->sbk", factor, eta * factor_scale)


def log_probs(loc: Tensor, scale: Tensor, factor: Tensor | None, factor_scale: Tensor | None, samples: int) -> Tensor:
    return logits(loc, scale, factor, factor_scale, samples).softmax(-1).mean(0).log()


def statistics(
    loc: Tensor, scale: Tensor, factor: Tensor | None, factor_scale: Tensor | None, samples: int
) -> tuple[Tensor, Tensor]:
    """Mean probabilities and expected entropy (no variance: less than ours)."""
    sampled = logits(loc, scale, factor, factor_scale, samples).log_softmax(-1)
    probs = sampled.exp()
    return probs.mean(0), -(probs * sampled).sum(-1).mean(0)


class VectorisedLayer(nn.Module):
    """The heteroscedastic layer for training."""

    def __init__(self, features: int, classes: int, factors: int, samples: int) -> None:
        super().__init__()
        self.classes, self.factors, self.samples = classes, factors, samples
        self.loc, self.scale = nn.Linear(features, classes), nn.Linear(features, classes)
        self.factor = nn.Linear(features, classes * factors)

    def forward(self, x: Tensor) -> Tensor:
        factor = self.factor(x).view(-1, self.classes, self.factors)
        return log_probs(self.loc(x), F.softplus(self.scale(x)), factor, None, self.samples)
