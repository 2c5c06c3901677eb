"""How our times grow with each dimension of the head, and how they shrink with threads."""

from __future__ import annotations

import os

import jobs
import torch
from jobs import EAGER, ONE_PASS, STATISTICS, Job
from measure import interleaved

BASE = Job("loss", "FA", 64, 64, 8, 64)
FACTORS = {"samples": 4, "classes": 4, "factors": 2, "rows": 4}
STEPS = 4

Curves = dict[str, dict[str, list[tuple[int, float]]]]


def growth(rounds: int) -> Curves:
    """Milliseconds of the loss with its gradients, with one dimension growing at a time: {dimension: {who: points}}."""
    curves: Curves = {}
    for dimension, factor in FACTORS.items():
        curves[dimension] = {ONE_PASS: [], EAGER: []}
        for step in range(STEPS):
            size = getattr(BASE, dimension) // factor * factor**step
            job = BASE._replace(**{dimension: size})
            times = interleaved({name: jobs.call(job, name) for name in (ONE_PASS, EAGER)}, rounds)
            for name, timing in times.items():
                curves[dimension][name].append((size, 1e3 * timing.median))
    return curves


def threads(rounds: int) -> Curves:
    """Milliseconds by the number of threads."""
    most, before = os.cpu_count() or 1, torch.get_num_threads()
    counts = sorted({1, most, *(2**i for i in range(1, most.bit_length()) if 2**i < most)})
    curves: Curves = {}
    try:
        for job, name in ((jobs.INFERENCE[0], STATISTICS), (jobs.TRAINING[2], ONE_PASS)):
            call = jobs.call(job, name)

            def with_threads(count: int, call=call) -> None:
                torch.set_num_threads(count)
                call()

            times = interleaved({str(count): lambda c=count: with_threads(c) for count in counts}, rounds)
            curves[str(job)] = {name: [(count, 1e3 * times[str(count)].median) for count in counts]}
    finally:
        torch.set_num_threads(before)
    return curves
