"""The jobs that are timed, and who does them: a call for each.

A head is a factor for each row (FA), one factor that all rows share, scaled for each row (PE), or
without factors (diagonal).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import peers
import torch
import torch.nn.functional as F
from measure import Call, fits_in_memory
from torch import Tensor

from hetnet_ext import functional, reference

ONE_PASS, DROP_IN = "mc_nll_loss", "F.nll_loss of mc_log_probs"
STATISTICS, CHOLESKY = "mc_statistics", "mc_statistics, Cholesky"
REFERENCE, EAGER, COMPILED = "reference", "eager", "torch.compile"
OURS = (ONE_PASS, DROP_IN, STATISTICS, CHOLESKY)


class Job(NamedTuple):
    kind: str  # "loss": loss and backward from the head's parameters on; "statistics": no gradients
    form: str
    rows: int
    classes: int
    factors: int
    samples: int

    def __str__(self) -> str:
        return f"{self.kind}, {self.form} B{self.rows} K{self.classes} R{self.factors} S{self.samples}"

    @property
    def normals(self) -> int:
        """In one pass over the samples."""
        return self.rows * self.samples * (self.classes + self.factors)

    @property
    def samples_bytes(self) -> int:
        """Of the samples of the logits, which our kernels never hold."""
        return 4 * self.rows * self.samples * self.classes


INFERENCE = [Job("statistics", "FA", 10_000, 10, 10, 800)]
SMALL = [Job("statistics", "FA", 1, 10, 10, 1000), Job("loss", "FA", 256, 10, 10, 4)]
TRAINING = [
    Job("loss", "FA", 128, 10, 10, 100),
    Job("loss", "FA", 128, 100, 15, 100),
    Job("loss", "FA", 128, 100, 15, 1000),
    Job("loss", "FA", 64, 1000, 15, 100),
    Job("loss", "PE", 64, 1000, 15, 100),
]
LARGE = [Job("loss", "PE", 8, 21_843, 50, 1000), Job("loss", "diagonal", 64, 32_128, 0, 1000)]


def head(job: Job) -> list[Tensor | None]:
    """loc, scale, factor and factor scale, as our operators and the peers take them."""
    torch.manual_seed(0)
    rows, classes, factors = job.rows, job.classes, job.factors
    loc, scale = 2 * torch.randn(rows, classes), F.softplus(torch.randn(rows, classes))
    if job.form == "FA":
        return [loc, scale, torch.randn(rows, classes, factors) / 2, None]
    if job.form == "PE":
        return [loc, scale, torch.randn(classes, factors) / 3, torch.randn(rows, factors)]
    return [loc, scale, None, None]


def calls(job: Job, with_compiled: bool) -> dict[str, Call]:
    """Everybody who can do the job in this machine's memory."""
    names = [ONE_PASS, DROP_IN] if job.kind == "loss" else [STATISTICS]
    if job.kind == "statistics" and job.factors > 0:
        names.append(CHOLESKY)
    if fits_in_memory(32 * job.samples_bytes) or job.kind == "statistics":  # with autograd and 64-bit noise
        names += [REFERENCE, EAGER] + [COMPILED] * with_compiled
    return {name: call(job, name) for name in names}


def call(job: Job, name: str) -> Call:
    return (_loss_call if job.kind == "loss" else _statistics_call)(job, name)


def _loss_call(job: Job, name: str) -> Call:
    parameters = [tensor if tensor is None else tensor.requires_grad_() for tensor in head(job)]
    loc, scale, factor, factor_scale = parameters
    target = torch.randint(job.classes, (job.rows,))
    compiled = torch.compile(peers.log_probs, dynamic=False) if name == COMPILED else None

    losses: dict[str, Callable[[], Tensor]] = {
        ONE_PASS: lambda: functional.mc_nll_loss(loc, scale, target, factor, factor_scale, num_samples=job.samples),
        DROP_IN: lambda: F.nll_loss(functional.mc_log_probs(*parameters, num_samples=job.samples), target),
        REFERENCE: lambda: F.nll_loss(reference.mc_log_probs(*parameters, num_samples=job.samples), target),
        EAGER: lambda: F.nll_loss(peers.log_probs(*parameters, job.samples), target),
        COMPILED: lambda: F.nll_loss(compiled(*parameters, job.samples), target),
    }

    def step() -> None:
        for parameter in parameters:
            if parameter is not None:
                parameter.grad = None
        losses[name]().backward()

    return step


def _statistics_call(job: Job, name: str) -> Call:
    parameters = head(job)
    if name in (STATISTICS, CHOLESKY):
        sampling = "cholesky" if name == CHOLESKY else "factored"
        return lambda: functional.mc_statistics(*parameters, num_samples=job.samples, sampling=sampling)
    if name == REFERENCE:
        return lambda: reference.mc_statistics(*parameters, num_samples=job.samples)
    function = torch.compile(peers.statistics) if name == COMPILED else peers.statistics
    return lambda: in_chunks(job, parameters, function)


def in_chunks(job: Job, parameters: list[Tensor | None], function: Callable[..., object]) -> list[object]:
    """Rows at a time whose samples fit the cache, which is the fastest for the peers."""
    rows = max(1, 2_000_000 // (job.samples * job.classes))
    chunks = -(-job.rows // rows)
    shared = (tensor is None or (job.form == "PE" and i == 2) for i, tensor in enumerate(parameters))
    parts = [
        [tensor] * chunks if whole else tensor.split(rows) for tensor, whole in zip(parameters, shared, strict=True)
    ]
    return [function(*part, job.samples) for part in zip(*parts, strict=True)]


def normals(job: Job, name: str) -> int | None:
    """Normals that one of our calls draws."""
    if name == CHOLESKY:
        return job.rows * job.samples * job.classes
    return {ONE_PASS: 1, DROP_IN: 2, STATISTICS: 1}[name] * job.normals if name in OURS else None
