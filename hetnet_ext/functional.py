"""The operators of a heteroscedastic classification head.

For a row with location mu (K classes), scale d and covariance factor F (K x R factors), a
sample of the noisy logits is

    u_s = (mu + d * eps_s + F (f * eta_s)) / T,    eps_s ~ N(0, I_K), eta_s ~ N(0, I_R)

(Collier et al., "Correlated input-dependent label noise in large-scale image
classification", CVPR 2021, section 3). The noise of a sample is a pure function of the seed,
the row, the sample and the dimension (docs/noise.md), so the operators of one seed see the
same samples, and the first 100 samples of 800 are the samples of 100.

All operators share these arguments:

``loc``, ``scale``
    (..., K), K >= 2. float32 or float64; float16 and bfloat16 are computed in float32.
``cov_factor``
    (..., K, R) with a factor for each row; or (K, R), shared by all rows; or None.
``factor_scale``
    (..., R), multiplies the columns of ``cov_factor``; or None.
``num_samples``
    S, at least 1.
``temperature``
    T > 0, a float or a tensor of shape ().
``seed``, ``row_offset``
    An int, with the position in the data set of the first row, or an int64 tensor (...) of each
    row's; or both in one int64 tensor, of shape (2,) or (1 + rows,). Without a seed, one is drawn
    from ``generator``, or from the global generator of the device, so that ``torch.manual_seed``
    reproduces a run; in a process group, ranks with the same state of the generator get different
    seeds.

They raise ``ValueError`` and ``TypeError`` that name the argument. A ``loc`` of -inf masks a
class: probability 0, gradient 0. NaN or +inf make their own row NaN.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from . import reference
from ._arguments import REDUCTIONS, McStatistics, prepare, prepare_target, uses_cholesky
from ._library import cuda_version

if TYPE_CHECKING:
    from ._arguments import Head

__all__ = ["McStatistics", "mc_log_probs", "mc_nll_loss", "mc_statistics", "sample_logits"]

_BACKENDS = ("native", "reference")
_backend = os.environ.get("HETNET_BACKEND", "native")
if _backend not in _BACKENDS:
    raise ImportError(f"HETNET_BACKEND: expected one of {', '.join(_BACKENDS)}, got {_backend!r}")
if _backend == "native":
    from . import ops


def sample_logits(
    loc: Tensor,
    scale: Tensor,
    cov_factor: Tensor | None = None,
    factor_scale: Tensor | None = None,
    *,
    num_samples: int = 1,
    temperature: float | Tensor = 1.0,
    seed: int | Tensor | None = None,
    row_offset: int | Tensor = 0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draws samples of the noisy logits over the temperature. Differentiable.

    Returns:
        (S, ..., K), in float32 or float64.
    """
    head, batch = prepare(
        loc, scale, cov_factor, factor_scale, num_samples=num_samples, temperature=temperature, seed=seed,
        row_offset=row_offset, generator=generator,
    )  # fmt: skip
    if _backend == "reference":
        logits = reference.sample_logits_of(head)
    else:
        _check_device(head)
        logits = ops.SampleLogits.call(*head)
    return logits if len(batch) == 1 else logits.reshape(head.num_samples, *batch, loc.shape[-1])


def mc_log_probs(
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
) -> Tensor:
    """Log of the softmax averaged over the samples, for ``F.nll_loss``. Differentiable.

    It stays finite, with finite gradients, where a class's probability underflows in every
    sample. Neither it nor its backward holds anything of the size of the samples.

    Returns:
        (..., K) log-probabilities, in float32 or float64.
    """
    head, batch = prepare(
        loc, scale, cov_factor, factor_scale, num_samples=num_samples, temperature=temperature, seed=seed,
        row_offset=row_offset, generator=generator,
    )  # fmt: skip
    if _backend == "reference":
        log_probs = reference.log_probs_of(head)
    else:
        _check_device(head)
        log_probs, _ = ops.McLogProbs.call(*head)
    return log_probs if len(batch) == 1 else log_probs.reshape(loc.shape)


def mc_nll_loss(
    loc: Tensor,
    scale: Tensor,
    target: Tensor,
    cov_factor: Tensor | None = None,
    factor_scale: Tensor | None = None,
    *,
    num_samples: int,
    temperature: float | Tensor = 1.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Literal["none", "mean", "sum"] = "mean",
    seed: int | Tensor | None = None,
    row_offset: int | Tensor = 0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """``F.nll_loss(mc_log_probs(...), target)``, with the gradients computed in the same pass. Differentiable.

    Forward and backward together draw the samples once; the backward pass only scales. (Without
    a reduction it draws them once more.)

    Args:
        target: (...) classes, int64.
        weight: (K,) weights of the classes.
        ignore_index: A target that counts for nothing.
        reduction: As in ``F.nll_loss``; the mean is over the rows' weights.

    Returns:
        (), or (...) without a reduction; in float32 or float64.
    """
    head, batch = prepare(
        loc, scale, cov_factor, factor_scale, num_samples=num_samples, temperature=temperature, seed=seed,
        row_offset=row_offset, generator=generator,
    )  # fmt: skip
    target, weight, ignore_index = prepare_target(target, weight, ignore_index, reduction, head, batch)
    if _backend == "reference":
        loss = reference.nll_loss_of(head, target, weight, ignore_index, reduction)
    else:
        _check_device(head)
        with_grad = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in head[:5])
        try:
            loss = ops.McNllLoss.call(*head, target, weight, ignore_index, REDUCTIONS.index(reduction), with_grad)
        except RuntimeError as error:
            # The kernel looks at every target anyway; it cannot raise a ValueError itself.
            found = re.search(r"target: expected classes .*", str(error))
            if found is None:
                raise
            raise ValueError(found.group()) from None
    return loss if reduction != "none" or len(batch) == 1 else loss.reshape(batch)


@torch.no_grad()
def mc_statistics(
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
    sampling: Literal["factored", "cholesky"] = "factored",
) -> McStatistics:
    """Mean, variance and expected entropy of the class probabilities. Not differentiable.

    Args:
        sampling: ``"factored"`` draws the samples of :func:`sample_logits`, K + R normals each.
            ``"cholesky"`` draws K normals through the Cholesky factor of each row's covariance:
            other samples of the same distribution, faster where K is small and R is not.

    Returns:
        :class:`McStatistics`, its tensors in float32 or float64.
    """
    head, batch = prepare(
        loc, scale, cov_factor, factor_scale, num_samples=num_samples, temperature=temperature, seed=seed,
        row_offset=row_offset, generator=generator,
    )  # fmt: skip
    cholesky = uses_cholesky(sampling, head)
    if _backend == "reference":
        mean, variance, entropy = reference.statistics_of(head, cholesky)
    else:
        _check_device(head)
        mean, variance, entropy = ops.kernels.mc_statistics(*head, cholesky)
    if len(batch) != 1:
        mean, variance, entropy = mean.reshape(loc.shape), variance.reshape(loc.shape), entropy.reshape(batch)
    return McStatistics(mean, variance, entropy, head.num_samples)


@torch.no_grad()
def draw_logits(
    loc: Tensor, scale: Tensor, cov_factor: Tensor | None, factor_scale: Tensor | None, *, num_samples: int,
    temperature: float | Tensor, seed: Tensor, sampling: str,
) -> Tensor:  # fmt: skip
    """The samples behind :func:`mc_statistics` with the same arguments. Not differentiable."""
    head, batch = prepare(
        loc, scale, cov_factor, factor_scale, num_samples=num_samples, temperature=temperature, seed=seed
    )
    cholesky = uses_cholesky(sampling, head)
    if _backend == "reference":
        logits = reference.sample_logits_of(head, cholesky)
    else:
        _check_device(head)
        logits = ops.kernels.sample_logits(*head, cholesky)
    return logits.reshape(num_samples, *batch, loc.shape[-1])


def _check_device(head: Head) -> None:
    kind = head.loc.device.type
    if kind in ("cpu", "meta"):
        return
    if kind != "cuda":
        raise ValueError(
            f"loc: expected device cpu or cuda, got {head.loc.device}: there are no kernels for it "
            "(HETNET_BACKEND=reference runs on every device)"
        )
    if cuda_version() is None:
        raise ValueError(
            f"loc: expected device cpu, got {head.loc.device}: this build of hetnet_ext has no CUDA kernels. "
            "`FORCE_CUDA=1 pip install --no-build-isolation .` builds them, beside a torch with CUDA and nvcc; "
            "HETNET_BACKEND=reference runs without them"
        )
