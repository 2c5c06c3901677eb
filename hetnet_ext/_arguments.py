"""The arguments that all operators share, checked and brought into the kernels' form; and a result."""

from __future__ import annotations

import math
import numbers
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
    row_offset: int | Tensor = 0,
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
    seed = make_seed(seed, row_offset=row_offset, generator=generator, device=loc.device, batch=batch)

    given = {x.dtype for x in (loc, scale, cov_factor, factor_scale) if x is not None}
    if given not in ({torch.float32}, {torch.float64}):  # half precision, or what autocast mixes
        loc, scale = loc.float(), scale.float()
        cov_factor = None if cov_factor is None else cov_factor.float()
        factor_scale = None if factor_scale is None else factor_scale.float()

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


def uses_cholesky(sampling: str, head: Head) -> bool:
    """Whether to draw through the Cholesky factor of the covariance."""
    if sampling not in ("factored", "cholesky"):
        raise ValueError(f"sampling: expected 'factored' or 'cholesky', got {sampling!r}")
    return sampling == "cholesky" and head.cov_factor is not None  # a diagonal is its own factor


REDUCTIONS = ("none", "mean", "sum")  # in the order of torch's numbers


def prepare_target(
    target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, head: Head, batch: torch.Size
) -> tuple[Tensor, Tensor | None, int]:
    """Returns the checked target with one batch dimension, the weight in the computing type, and ``ignore_index``."""
    if not isinstance(target, Tensor):
        raise TypeError(f"target: expected a tensor, got {type(target).__name__}")
    if target.dtype != torch.int64:
        raise TypeError(f"target: expected dtype torch.int64, got {target.dtype}")
    _check_shape("target", target, batch, "the shape of loc without the classes")
    if target.device != head.loc.device:
        raise ValueError(f"target: expected device {head.loc.device}, the device of loc, got {target.device}")
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction: expected 'none', 'mean' or 'sum', got {reduction!r}")
    if weight is not None:
        _check_real("weight", weight)
        _check_shape("weight", weight, head.loc.shape[-1:], "one weight a class")
        if weight.device != head.loc.device:
            raise ValueError(f"weight: expected device {head.loc.device}, the device of loc, got {weight.device}")
        weight = weight.detach().to(head.loc.dtype)
    return target.reshape(-1), weight, check_integer("ignore_index", ignore_index)


def check_num_samples(num_samples: int, name: str = "num_samples") -> int:
    return check_integer(name, num_samples, low=1, high=_MAX_SAMPLES)


def check_integer(name: str, value: int, low: int = -(2**63), high: int = 2**63 - 1) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an int, got {type(value).__name__}") from None
    if not low <= number <= high:
        bound = f"at least {low}" if high == 2**63 - 1 and number < low else f"{low} to {high}"
        raise ValueError(f"{name}: expected {bound}, got {number}")
    return number


def check_seed(seed: int | None, generator: torch.Generator | None) -> None:
    """Checks what :func:`make_seed` will be given, without drawing from the generator."""
    if generator is not None:
        if not isinstance(generator, torch.Generator):
            raise TypeError(f"generator: expected a torch.Generator, got {type(generator).__name__}")
        if seed is not None:
            raise ValueError("generator: expected None where a seed is given")
    if seed is not None:
        check_integer("seed", seed)


def make_seed(
    seed: int | Tensor | None,
    *,
    row_offset: int | Tensor = 0,
    generator: torch.Generator | None = None,
    device: torch.device | str = "cpu",
    batch: torch.Size,
) -> Tensor:
    """The seed tensor of docs/noise.md: int64, the seed and then the position of the first row, (2,), or
    those of all rows, (1 + B,). (Of one row the two are the same.)

    Without a ``seed``, one is drawn from ``generator``; or from the global generator of ``device``,
    and then it differs between the ranks of a process group, which may all have been seeded alike.
    """
    if isinstance(seed, Tensor):
        check_seed(0, generator)
        if isinstance(row_offset, Tensor) or row_offset != 0:
            given = "a tensor" if isinstance(row_offset, Tensor) else row_offset
            raise ValueError(
                f"row_offset: expected 0 where seed is a tensor, which holds the offset itself, got {given}"
            )
        if seed.dtype != torch.int64:
            raise TypeError(f"seed: expected dtype torch.int64, got {seed.dtype}")
        if seed.shape != (2,) and seed.shape != (1 + batch.numel(),):
            raise ValueError(
                f"seed: expected shape (2,), holding the seed and the row offset, or {(1 + batch.numel(),)}, "
                f"holding the seed and each row's position, got {tuple(seed.shape)}"
            )
        if seed.device != torch.device(device):
            raise ValueError(f"seed: expected device {device}, the device of loc, got {seed.device}")
        return seed
    check_seed(seed, generator)
    if isinstance(row_offset, Tensor):
        _check_positions(row_offset, batch, torch.device(device))
    else:
        row_offset = check_integer("row_offset", row_offset, low=0)
    if seed is None:
        drawn = draw_seed(generator, device)
        if generator is None:
            drawn = drawn + _rank()
    elif isinstance(row_offset, Tensor):
        drawn = torch.full((1,), operator.index(seed), dtype=torch.int64, device=device)
    else:
        return torch.tensor([operator.index(seed), row_offset], dtype=torch.int64, device=device)
    if isinstance(row_offset, Tensor):
        return torch.cat((drawn, row_offset.reshape(-1)))
    return torch.constant_pad_nd(drawn, (0, 1), row_offset)


def draw_seed(generator: torch.Generator | None, device: torch.device | str) -> Tensor:
    """A seed alone, of shape (1,)."""
    return torch.randint(-(2**63), 2**63 - 1, (1,), generator=generator, device=device)


def _rank() -> int:
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def _check_positions(row_offset: Tensor, batch: torch.Size, device: torch.device) -> None:
    if row_offset.dtype != torch.int64:
        raise TypeError(f"row_offset: expected an int or a tensor of dtype torch.int64, got {row_offset.dtype}")
    _check_shape("row_offset", row_offset, batch, "a position for each row")
    if row_offset.device != device:
        raise ValueError(f"row_offset: expected device {device}, the device of loc, got {row_offset.device}")


def check_temperature_value(value: float, dtype: torch.dtype = torch.float32) -> float:
    """``value`` as a float that is above 0 in ``dtype`` as well."""
    if not isinstance(value, numbers.Real | torch.SymFloat):
        raise TypeError(f"temperature: expected a float, got {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not torch.finfo(dtype).tiny <= number < math.inf:
        bound = f", at least {torch.finfo(dtype).tiny:.2g} in {dtype}" if 0 < number < math.inf else ""
        raise ValueError(f"temperature: expected a finite value above 0{bound}, got {number}")
    return number


def _check_temperature(temperature: float | Tensor, loc: Tensor) -> Tensor:
    if not isinstance(temperature, Tensor):
        value = check_temperature_value(temperature, loc.dtype)
        return torch.full((), value, dtype=loc.dtype, device=loc.device)
    if temperature.dim() != 0:
        raise ValueError(f"temperature: expected a float or a tensor of shape (), got {tuple(temperature.shape)}")
    if not temperature.is_floating_point():
        raise TypeError(f"temperature: expected a floating-point tensor, got {temperature.dtype}")
    # Reading a value would synchronise a GPU and break a compiled graph: there a temperature that
    # is not above 0 makes everything NaN.
    plain = type(temperature) in (Tensor, torch.nn.Parameter) and temperature.device.type == "cpu"
    if plain and not torch.compiler.is_compiling():
        check_temperature_value(temperature.item(), loc.dtype)
    return temperature.to(loc)


def _autocasts(x: Tensor) -> bool:
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Keeps the precision of operations on tensors like ``x``."""
    return torch.autocast(x.device.type, enabled=False) if _autocasts(x) else nullcontext()


def _check_real(name: str, x: Tensor, loc: Tensor | None = None) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}")
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise TypeError(f"{name}: expected dtype float16, bfloat16, float32 or float64, got {x.dtype}")
    if x.layout != torch.strided or x.is_nested:
        raise TypeError(f"{name}: expected a dense tensor, got {'a nested one' if x.is_nested else x.layout}")
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
