"""Interleaved medians with their spread, peak memory, and what machine it was."""

from __future__ import annotations

import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

import hetnet_ext

Call = Callable[[], object]


class Timing(NamedTuple):
    """Seconds a call: the median of the rounds, and the quartiles around it."""

    median: float
    low: float
    high: float


def interleaved(calls: dict[str, Call], rounds: int, at_least: float = 0.02) -> dict[str, Timing]:
    """Times calls in rounds, each of which runs every call in turn for a while.

    A call that takes less than ``at_least`` seconds is repeated in a round. The first round warms up.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    repeats = dict.fromkeys(calls, 1)
    for _ in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            seconds[name].append((time.perf_counter() - start) / repeats[name])
            repeats[name] = max(1, round(at_least / min(seconds[name])))
    return {name: _timing(values[1:]) for name, values in seconds.items()}


def once(call: Call) -> Timing:
    """For a call that takes long."""
    start = time.perf_counter()
    call()
    return _timing([time.perf_counter() - start])


def _timing(seconds: list[float]) -> Timing:
    if len(seconds) == 1:
        return Timing(seconds[0], seconds[0], seconds[0])
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(median, low, high)


def peak_growth(make: Callable[..., Call], *arguments: object, warm_up: tuple[object, ...] | None = None) -> int | None:
    """Bytes by which a call grows the resident set of a fresh process, at its peak, its result included.

    ``make(*arguments)`` prepares the call. ``warm_up`` are the arguments of a small one that runs first,
    for what is loaded and started once. None where the system does not tell (outside Linux).
    """
    if not Path("/proc/self/clear_refs").exists():
        return None
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_growth, (make, arguments, warm_up, torch.get_num_threads()))


def _peak_growth(
    make: Callable[..., Call], arguments: tuple[object, ...], warm_up: tuple[object, ...] | None, threads: int
) -> int:
    torch.set_num_threads(threads)
    if warm_up is not None:
        make(*warm_up)()
    call = make(*arguments)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    kept = call()
    growth = _status("VmHWM") - before
    del kept
    return growth


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])


def fits_in_memory(size: float) -> bool:
    return size < 0.8 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def machine() -> dict[str, object]:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    try:
        import probly
    except ImportError:
        probly = None
    return {
        "processor": next((line.split(":")[-1].strip() for line in lines if "model name" in line), platform.machine()),
        "instruction set": hetnet_ext.cpu_capability(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "hetnet_ext": hetnet_ext.__version__,
        "probly": getattr(probly, "__version__", None),
    }
