"""Random heads of every kind of covariance."""

from __future__ import annotations

import torch
from torch import Tensor

COVARIANCES = ["diagonal", "per_row", "per_row_scaled", "shared", "shared_scaled"]


def random_head(
    covariance: str, rows: int = 5, classes: int = 6, factors: int = 3, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """Arguments of the operators, exactly representable in float32, that require gradients."""
    head = {"loc": 2 * torch.randn(rows, classes), "scale": 0.2 + torch.rand(rows, classes)}
    if covariance != "diagonal":
        shape = (classes, factors) if covariance.startswith("shared") else (rows, classes, factors)
        head["cov_factor"] = torch.randn(shape) / 2
    if covariance.endswith("scaled"):
        head["factor_scale"] = torch.randn(rows, factors)
    head["temperature"] = torch.tensor(1.25)
    return {name: tensor.to(dtype).requires_grad_() for name, tensor in head.items()}


def cast(head: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: tensor.detach().to(dtype).requires_grad_() for name, tensor in head.items()}


def gradients(output: Tensor, head: dict[str, Tensor], upstream: Tensor) -> dict[str, Tensor]:
    inputs = [tensor for tensor in head.values() if tensor.requires_grad]
    names = [name for name, tensor in head.items() if tensor.requires_grad]
    return dict(zip(names, torch.autograd.grad(output, inputs, upstream.to(output.dtype)), strict=True))
