"""Tolerance as a ratio of errors against a higher precision."""

from __future__ import annotations

import math

import numpy as np
import torch


class Errors:
    """Mean absolute errors of our float32 results and of the float32 reference's, against float64."""

    def __init__(self) -> None:
        self.ours: dict[str, list[float]] = {}
        self.reference: dict[str, list[float]] = {}
        self.size: dict[str, list[float]] = {}

    def add(self, name: str, ours: torch.Tensor, single: torch.Tensor, exact: torch.Tensor) -> None:
        assert ours.dtype == single.dtype == torch.float32
        for store, value in ((self.ours, ours - exact), (self.reference, single - exact), (self.size, exact)):
            store.setdefault(name, []).append(float(value.double().abs().mean()))

    def check(self) -> None:
        """Ours is on average at most twice the reference's.

        Where that is exact by luck, four ulp are allowed: a variance squares the two that a
        probability's exponential and division may cost. An average over a few heads is itself
        uncertain, as single ones can have most of the error: only three standard errors tell.
        """
        failures = []
        for name in self.ours:
            ours, single, size = (np.array(store[name]) for store in (self.ours, self.reference, self.size))
            excess = ours - 2 * single - 4 * np.finfo(np.float32).eps * size
            uncertainty = excess.std(ddof=1) / math.sqrt(len(excess)) if len(excess) > 1 else 0
            if not excess.mean() <= 3 * uncertainty:
                means = f"error {ours.mean():.2e}, of the reference {single.mean():.2e}, size {size.mean():.2e}"
                failures.append(f"{name}: {means}, beyond the bound by {excess.mean():.2e} +- {uncertainty:.2e}")
        assert not failures, failures
