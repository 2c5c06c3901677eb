"""Every operator in plain PyTorch: the oracle of the tests and the baseline of the benchmarks.

Same signatures and the same noise as :mod:`hetnet_ext.functional`, on any device, and
differentiable as often as one likes. It materialises the samples, and is meant to be read.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ._arguments import Head, McStatistics, prepare, prepare_target, uses_cholesky, without_autocast

_LOW_WORD = 0xFFFFFFFF
# Rows whose samples are held at a time hold at most this many normals.
_NORMALS_AT_ONCE = 1 << 22


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Philox4x32-10 on 32-bit words held in int64 (Salmon et al., SC 2011)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57  # the low 64 bits are right whatever the sign
        c0, c1, c2, c3 = (
            (p1 >> 32 & _LOW_WORD) ^ c1 ^ k0,
            p1 & _LOW_WORD,
            (p0 >> 32 & _LOW_WORD) ^ c3 ^ k1,
            p0 & _LOW_WORD,
        )
        k0, k1 = k0 + 0x9E3779B9 & _LOW_WORD, k1 + 0xBB67AE85 & _LOW_WORD
    return [c0, c1, c2, c3]


def standard_normals(seed: Tensor, num_samples: int, rows: int, dimensions: int, dtype: torch.dtype) -> Tensor:
    """The noise of docs/noise.md, (S, B, dimensions)."""
    row = positions(seed, rows)[:, None]
    sample = torch.arange(num_samples, device=seed.device)[:, None, None]
    block = torch.arange((dimensions + 3) // 4, device=seed.device)
    counter = torch.broadcast_tensors(block, sample, row & _LOW_WORD, row >> 32 & _LOW_WORD)
    words = philox(counter, (seed[0] & _LOW_WORD, seed[0] >> 32 & _LOW_WORD))
    pairs = [box_muller(words[0], words[1], dtype), box_muller(words[2], words[3], dtype)]
    return torch.stack([*pairs[0], *pairs[1]], -1).flatten(-2)[..., :dimensions]


def positions(seed: Tensor, rows: int) -> Tensor:
    """The rows' places in the noise stream, (B,), of a seed tensor: see :func:`hetnet_ext._arguments.make_seed`."""
    return seed[1:] if seed.numel() != 2 else seed[1] + torch.arange(rows, device=seed.device)


def box_muller(radius_word: Tensor, angle_word: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two independent standard normals from two words. The uniforms are float32 numbers in every dtype."""
    u = (radius_word & 0x7FFFFFFF).to(torch.float32) * 2.0**-31 + 2.0**-32
    signed = torch.where(angle_word >= 2**31, angle_word - 2**32, angle_word)
    t = signed.to(torch.float32) * 2.0**-32
    radius = torch.sqrt(-2 * torch.log(u.to(dtype)))
    t = t.to(dtype)
    cosine = torch.sin(math.pi * (0.5 - t.abs()))  # keeps its digits near its zeros at 1/2
    mirror = 1 - 2 * (radius_word >> 31).to(dtype)
    return mirror * radius * cosine, radius * torch.sin(math.pi * t)


def sample_logits_of(head: Head, cholesky: bool = False) -> Tensor:
    return _utilities(head, cholesky).masked_fill(_masked(head), -math.inf)


def log_probs_of(head: Head) -> Tensor:
    masked = _masked(head)
    log_probs = F.log_softmax(sample_logits_of(head), -1).masked_fill(masked, 0)
    # logsumexp by hand: the gradient of torch's divides by exp of a rounded logarithm
    peak = log_probs.detach().amax(0)
    averaged = peak + (log_probs - peak).exp().sum(0).log() - math.log(head.num_samples)
    averaged = averaged.masked_fill(masked, -math.inf)
    # A row that holds NaN, or no class at all, is NaN as a whole, as in log_softmax.
    undefined = averaged.isnan().any(-1, keepdim=True) | masked.all(-1, keepdim=True)
    return averaged.masked_fill(undefined, math.nan)


def nll_loss_of(head: Head, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str) -> Tensor:
    classes = head.loc.shape[-1]
    wrong = target[(target != ignore_index) & ((target < 0) | (target >= classes))]
    if wrong.numel():
        raise ValueError(
            f"target: expected classes 0 to {classes - 1}, or ignore_index, {ignore_index}, got {int(wrong[0])}"
        )
    # An ignored row counts for nothing, not even as NaN.
    ignored = target == ignore_index

    def without_ignored(x: Tensor | None, dimensions: int) -> Tensor | None:
        if x is None or x.dim() != dimensions:
            return x  # absent, or shared by all rows
        return x.masked_fill(ignored.view(-1, *[1] * (dimensions - 1)), 0)

    head = head._replace(
        loc=head.loc.masked_fill(ignored[:, None], 0),
        scale=head.scale.masked_fill(ignored[:, None], 0),
        cov_factor=without_ignored(head.cov_factor, 3),
        factor_scale=without_ignored(head.factor_scale, 2),
    )
    return F.nll_loss(log_probs_of(head), target, weight, ignore_index=ignore_index, reduction=reduction)


def statistics_of(head: Head, cholesky: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    rows, classes = head.loc.shape
    factors = 0 if head.cov_factor is None else head.cov_factor.shape[-1]
    step = max(1, _NORMALS_AT_ONCE // (head.num_samples * (classes + factors)))
    parts = [
        _statistics(_rows(head, start, min(start + step, rows)), cholesky) for start in range(0, max(rows, 1), step)
    ]
    mean, variance, entropy = (torch.cat(column) for column in zip(*parts, strict=True))
    return mean, variance, entropy


def _statistics(head: Head, cholesky: bool) -> tuple[Tensor, Tensor, Tensor]:
    log_probs = F.log_softmax(sample_logits_of(head, cholesky), -1)
    probs = log_probs.exp()
    entropy = -(probs * log_probs.masked_fill(probs == 0, 0)).sum(-1)
    mean = probs.mean(0)
    return mean, (probs - mean).square().mean(0), entropy.mean(0)


def _rows(head: Head, start: int, stop: int) -> Head:
    """The head of some of the rows, with their own noise."""
    cov_factor, factor_scale = head.cov_factor, head.factor_scale
    return head._replace(
        loc=head.loc[start:stop],
        scale=head.scale[start:stop],
        cov_factor=cov_factor if cov_factor is None or cov_factor.dim() == 2 else cov_factor[start:stop],
        factor_scale=factor_scale if factor_scale is None else factor_scale[start:stop],
        seed=torch.cat((head.seed[:1], positions(head.seed, head.loc.shape[0])[start:stop])),
    )


def _masked(head: Head) -> Tensor:
    return torch.isneginf(head.loc)


def _utilities(head: Head, cholesky: bool) -> Tensor:
    """Noisy logits over the temperature, those of masked classes replaced by something finite."""
    noise = _cholesky_noise(head) if cholesky else _factored_noise(head)
    temperature = torch.where(head.temperature > 0, head.temperature, math.nan)
    return (head.loc.masked_fill(_masked(head), 0) + noise + _zero_if_finite(head)[:, None]) / temperature


def _factored_noise(head: Head) -> Tensor:
    """scale * eps + cov_factor (factor_scale * eta)"""
    rows, classes = head.loc.shape
    factors = 0 if head.cov_factor is None else head.cov_factor.shape[-1]
    normals = standard_normals(head.seed, head.num_samples, rows, classes + factors, head.loc.dtype)
    eps, eta = normals[..., :classes], normals[..., classes:]
    noise = head.scale * eps
    if head.cov_factor is not None:
        if head.factor_scale is not None:
            eta = eta * head.factor_scale
        formula = "kr,sbr->sbk" if head.cov_factor.dim() == 2 else "bkr,sbr->sbk"
        with without_autocast(eta):
            noise = noise + torch.einsum(formula, head.cov_factor, eta)
    return noise


def _cholesky_noise(head: Head) -> Tensor:
    """L z with L L^T = diag(scale^2) + F F^T. Columns whose pivot is mere rounding are zeros."""
    rows, classes = head.loc.shape
    assert head.cov_factor is not None
    # in double precision: what rounding leaves of a singular covariance is as small as its root
    factor = head.cov_factor.double()
    if head.factor_scale is not None:
        factor = factor * head.factor_scale[:, None]
    covariance = torch.diag_embed(head.scale.double() ** 2) + factor @ factor.mT
    lower = torch.zeros_like(covariance)
    for j in range(classes):
        column = covariance[:, j:, j] - (lower[:, j:, :j] @ lower[:, j, :j, None]).squeeze(-1)
        rounding = 4 * torch.finfo(column.dtype).eps * classes * covariance[:, j, j, None]
        pivot = column[:, :1].masked_fill(column[:, :1] <= rounding, 0).sqrt()
        lower[:, j:, j] = torch.where(pivot == 0, 0, column / pivot)
        lower[:, j, j] = pivot.squeeze(-1)
    normals = standard_normals(head.seed, head.num_samples, rows, classes, head.loc.dtype)
    with without_autocast(normals):
        return torch.einsum("bkj,sbj->sbk", lower.to(normals), normals)


def _zero_if_finite(head: Head) -> Tensor:
    """(B,) zeros, but NaN for a row with an infinite scale: its utilities could be -inf, like a masked class's."""
    zero = (head.scale.detach() * 0).sum(-1)
    if head.cov_factor is not None:
        zero = zero + (head.cov_factor.detach() * 0).sum((-2, -1))
    if head.factor_scale is not None:
        zero = zero + (head.factor_scale.detach() * 0).sum(-1)
    return zero


def sample_logits(*args: Any, num_samples: int = 1, **kwargs: Any) -> Tensor:
    """See :func:`hetnet_ext.functional.sample_logits`, whose arguments it takes."""
    head, batch = prepare(*args, num_samples=num_samples, **kwargs)
    return sample_logits_of(head).reshape(head.num_samples, *batch, head.loc.shape[-1])


def mc_log_probs(*args: Any, **kwargs: Any) -> Tensor:
    """See :func:`hetnet_ext.functional.mc_log_probs`, whose arguments it takes."""
    head, batch = prepare(*args, **kwargs)
    return log_probs_of(head).reshape(*batch, head.loc.shape[-1])


def mc_nll_loss(
    loc: Tensor, scale: Tensor, target: Tensor, *args: Any, weight: Tensor | None = None, ignore_index: int = -100,
    reduction: str = "mean", **kwargs: Any,
) -> Tensor:  # fmt: skip
    """See :func:`hetnet_ext.functional.mc_nll_loss`, whose arguments it takes."""
    head, batch = prepare(loc, scale, *args, **kwargs)
    target, weight, ignore_index = prepare_target(target, weight, ignore_index, reduction, head, batch)
    loss = nll_loss_of(head, target, weight, ignore_index, reduction)
    return loss.reshape(batch) if reduction == "none" else loss


@torch.no_grad()
def mc_statistics(*args: Any, sampling: str = "factored", **kwargs: Any) -> McStatistics:
    """See :func:`hetnet_ext.functional.mc_statistics`, whose arguments it takes."""
    head, batch = prepare(*args, **kwargs)
    mean, variance, entropy = statistics_of(head, uses_cholesky(sampling, head))
    shape = (*batch, head.loc.shape[-1])
    return McStatistics(mean.reshape(shape), variance.reshape(shape), entropy.reshape(batch), head.num_samples)
