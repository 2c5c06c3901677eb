"""What the benchmarks share: interleaved medians, and a line about the machine."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import hetnet_ext


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def interleaved(functions: dict[str, Callable[[], object]], repeats: int, at_least: float = 0.02) -> dict[str, float]:
    """Median seconds over rounds, each of which runs every function in turn for a while.

    A function that takes less than ``at_least`` seconds runs several times in a round. The first
    round warms up.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    calls = dict.fromkeys(functions, 1)
    for _ in range(repeats + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(calls[name]):
                function()
            times[name].append((time.perf_counter() - start) / calls[name])
            calls[name] = max(1, round(at_least / min(times[name])))
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def machine() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    cpu = next((line.split(":")[-1].strip() for line in lines if "model name" in line), platform.machine())
    return (
        f"{cpu}, {torch.get_num_threads()} threads, {hetnet_ext.cpu_capability()}; Python {platform.python_version()}, "
        f"torch {torch.__version__}, hetnet_ext {hetnet_ext.__version__}"
    )
