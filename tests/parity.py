"""Tolerance as a ratio of errors against a higher precision."""

from __future__ import annotations

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
        """Ours is at most twice the reference's.

        Where that is exact by luck, four ulp are allowed: a variance squares the two that a
        probability's exponential and division may cost.
        """
        failures = []
        for name in self.ours:
            ours, single, size = (
                sum(store[name]) / len(store[name]) for store in (self.ours, self.reference, self.size)
            )
            if not ours <= 2 * single + 4 * torch.finfo(torch.float32).eps * size:
                failures.append(f"{name}: error {ours:.2e}, of the reference {single:.2e}, size {size:.2e}")
        assert not failures, failures
