"""The picture of a report."""

from __future__ import annotations

from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt


def save(report: dict[str, Any], path: str) -> None:
    matplotlib.rcdefaults()  # probly sets a style of its own
    figure, axes = plt.subplots(2, 3, figsize=(13, 7.5), layout="constrained")
    _ratios(axes[0, 0], report["results"])
    flat = [*axes[0, 1:], *axes[1, :]]
    for ax, (dimension, curves) in zip(flat, report.get("growth", {}).items(), strict=False):
        _curves(ax, curves, f"number of {dimension}", "ms")
        ax.set_title(f"Growth with the {dimension}")
    ax = flat[-1]
    for job, curves in report.get("threads", {}).items():
        _curves(ax, {job: next(iter(curves.values()))}, "threads", "ms")
    ax.set_title("Threads")
    machine = report["machine"]
    figure.suptitle(
        f"{machine['processor']}, {machine['instruction set']}, {machine['threads']} threads, torch {machine['torch']}",
        fontsize=10,
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _ratios(ax: Any, results: list[dict[str, Any]]) -> None:
    """How many times as long as ours eager PyTorch takes."""
    rows = [(r["job"], r["times ours"]) for r in results if r["who"] in ("eager", "eager head")]
    names, ratios = zip(*reversed(rows), strict=True) if rows else ((), ())
    ax.barh(names, ratios, color="tab:blue")
    for i, ratio in enumerate(ratios):
        ax.text(ratio, i, f" {ratio:.1f}", va="center", fontsize=8)
    ax.axvline(1, color="black", linewidth=0.8)
    ax.tick_params(axis="y", labelsize=7)
    ax.set_xlabel("time of eager PyTorch / ours")
    ax.set_title("Jobs")
    ax.margins(x=0.15)


def _curves(ax: Any, curves: dict[str, list[tuple[int, float]]], x: str, y: str) -> None:
    for name, points in curves.items():
        ax.plot(*zip(*points, strict=True), marker="o", label=name)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.legend(fontsize=7)
