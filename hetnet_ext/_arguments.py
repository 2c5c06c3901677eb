"""The arguments that all operators share, checked and brought into the kernels' form; and a result."""

from __future__ import annotations

import math
import operator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

_MAX_SAMPLES = 2**31 - 1


class Head(NamedTuple):
    """The arguments of an operator in the form of :mod:`hetnet_ext.ops`."""

    loc: Tensor
    scale: Tensor
    cov_factor: Tensor | None
    factor_scale: Tensor | None
    temperature: Tensor
    seed: Tensor
    num_samples: int


class McStatistics(NamedTuple):
    """Monte-Carlo statistics of the class probabilities over the samples."""

    mean: Tensor
    """(..., K) mean probabilities."""
    variance: Tensor
    """(..., K) variance of the probabilities: the mean squared distance from their mean."""
    expected_entropy: Tensor
    """(...) mean entropy of the samples, in nats: the aleatoric uncertainty."""
    num_samples: int
    """Number of samples, S."""


def prepare(
    loc: Tensor,
    scale: Tensor,
    cov_factor: Tensor | None = None,
    factor_scale: Tensor | None = None,
    *,
    num_samples: int,
    temperature: float | Tensor = 1.0,
    seed: int | Tensor | None = None,
    row_offset: int = 0,
    generator: torch.Generator | None = None,
) -> tuple[Head, torch.Size]:
    """Returns the checked arguments with one batch dimension, and the batch shape of ``loc``."""
    _check_real("loc", loc)
    batch = loc.shape[:-1]
    if loc.dim() == 0 or loc.shape[-1] < 2:
        raise ValueError(f"loc: expected shape (..., classes) with at least 2 classes, got {tuple(loc.shape)}")
    _check_real("scale", scale, loc)
    _check_shape("scale", scale, loc.shape, "the shape of loc")

    if cov_factor is not None:
        _check_real("cov_factor", cov_factor, loc)
        if cov_factor.shape[:-1] != loc.shape and (cov_factor.dim() != 2 or cov_factor.shape[0] != loc.shape[-1]):
            per_row, shared = (*loc.shape, "factors"), (loc.shape[-1], "factors")
            raise ValueError(
                f"cov_factor: expected shape {_spell(per_row)}, or {_spell(shared)} shared by all rows, "
                f"got {tuple(cov_factor.shape)}"
            )
    if factor_scale is not None:
        if cov_factor is None:
            raise ValueError("factor_scale: expected None without a cov_factor, got a tensor")
        _check_real("factor_scale", factor_scale, loc)
        _check_shape("factor_scale", factor_scale, (*batch, cov_factor.shape[-1]), "(..., factors) as in cov_factor")
    if cov_factor is not None and cov_factor.shape[-1] == 0:
        cov_factor = factor_scale = None

    num_samples = check_num_samples(num_samples)
    seed = make_seed(seed, row_offset=row_offset, generator=generator, device=loc.device)

    if loc.dtype in (torch.float16, torch.bfloat16) or _autocasts(loc):
        loc, scale = _compute_type(loc), _compute_type(scale)
        cov_factor = None if cov_factor is None else _compute_type(cov_factor)
        factor_scale = None if factor_scale is None else _compute_type(factor_scale)

    classes = loc.shape[-1]
    if loc.dim() != 2:
        rows = batch.numel()
        loc, scale = loc.reshape(rows, classes), scale.reshape(rows, classes)
        if cov_factor is not None and cov_factor.dim() > 2:
            cov_factor = cov_factor.reshape(rows, classes, cov_factor.shape[-1])
        if factor_scale is not None:
            factor_scale = factor_scale.reshape(rows, factor_scale.shape[-1])
    temperature = _check_temperature(temperature, loc)
    return Head(loc, scale, cov_factor, factor_scale, temperature, seed, num_samples), batch


def check_num_samples(num_samples: int) -> int:
    try:
        count = operator.index(num_samples)
    except TypeError:
        raise TypeError(f"num_samples: expected an int, got {type(num_samples).__name__}") from None
    if not 1 <= count <= _MAX_SAMPLES:
        raise ValueError(f"num_samples: expected 1 to {_MAX_SAMPLES}, got {count}")
    return count


def make_seed(
    seed: int | Tensor | None,
    *,
    row_offset: int = 0,
    generator: torch.Generator | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """The seed tensor of docs/noise.md: int64 of shape (2,), the seed and the first row's position.

    Without a ``seed``, one is drawn from ``generator``, or from the global generator of ``device``.
    """
    if generator is not None:
        if not isinstance(generator, torch.Generator):
            raise TypeError(f"generator: expected a torch.Generator, got {type(generator).__name__}")
        if seed is not None:
            raise ValueError("generator: expected None where a seed is given")
    if isinstance(seed, Tensor):
        if row_offset != 0:
            raise ValueError(
                f"row_offset: expected 0 where seed is a tensor, which holds the offset itself, got {row_offset}"
            )
        if seed.dtype != torch.int64:
            raise TypeError(f"seed: expected dtype torch.int64, got {seed.dtype}")
        if seed.shape != (2,):
            raise ValueError(f"seed: expected shape (2,), holding the seed and the row offset, got {tuple(seed.shape)}")
        if seed.device != torch.device(device):
            raise ValueError(f"seed: expected device {device}, the device of loc, got {seed.device}")
        return seed
    row_offset = _check_int64("row_offset", row_offset, low=0)
    if seed is not None:
        return torch.tensor([_check_int64("seed", seed), row_offset], dtype=torch.int64, device=device)
    drawn = torch.randint(-(2**63), 2**63 - 1, (1,), generator=generator, device=device)
    return torch.cat((drawn, torch.tensor([row_offset], device=device)))


def _check_int64(name: str, value: int, low: int = -(2**63)) -> int:
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an int, got {type(value).__name__}") from None
    if not low <= value < 2**63:
        raise ValueError(f"{name}: expected a value from {low} to {2**63 - 1}, got {value}")
    return value


def _check_temperature(temperature: float | Tensor, loc: Tensor) -> Tensor:
    if isinstance(temperature, Tensor):
        if temperature.dim() != 0:
            raise ValueError(f"temperature: expected a float or a tensor of shape (), got {tuple(temperature.shape)}")
        if not temperature.is_floating_point():
            raise TypeError(f"temperature: expected a floating-point tensor, got {temperature.dtype}")
        # Reading a value would synchronise a GPU and break a compiled graph: there a bad
        # temperature shows as NaN.
        readable = temperature.device.type == "cpu" and not torch.compiler.is_compiling()
        value = temperature.item() if readable else 1.0
        result = temperature.to(loc)
    else:
        try:
            value = float(temperature)
        except (TypeError, ValueError):
            raise TypeError(f"temperature: expected a float, got {type(temperature).__name__}") from None
        result = torch.tensor(value, dtype=loc.dtype, device=loc.device)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"temperature: expected a finite value above 0, got {value}")
    return result


def _autocasts(x: Tensor) -> bool:
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Keeps the precision of operations on tensors like ``x``."""
    return torch.autocast(x.device.type, enabled=False) if _autocasts(x) else nullcontext()


def _compute_type(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _check_real(name: str, x: Tensor, loc: Tensor | None = None) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise TypeError(f"{name}: expected dtype float16, bfloat16, float32 or float64, got {x.dtype}")
    if loc is None:
        return
    if x.device != loc.device:
        raise ValueError(f"{name}: expected device {loc.device}, the device of loc, got {x.device}")
    if x.dtype != loc.dtype and not _autocasts(loc):
        raise TypeError(f"{name}: expected dtype {loc.dtype}, the dtype of loc, got {x.dtype}")


def _check_shape(name: str, x: Tensor, expected: tuple[int, ...], meaning: str) -> None:
    if tuple(x.shape) != tuple(expected):
        raise ValueError(f"{name}: expected shape {tuple(expected)}, {meaning}, got {tuple(x.shape)}")


def _spell(shape: tuple[int | str, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + ")"
