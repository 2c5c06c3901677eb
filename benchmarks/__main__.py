"""Times the package against its peers, in the same process and in turn.

    python benchmarks                  # everything, in some ten minutes
    python benchmarks training small   # named cases
    python benchmarks --root DIR       # with MNIST, where DIR holds MNIST/raw
    python benchmarks --json results.json --plot results.png

Who takes part: our operators; `reference`, the same in plain PyTorch with the same noise; `eager`,
the head in vectorised PyTorch with autograd, in chunks of rows for inference; `torch.compile` of
that; and probly, where it is installed (Python 3.13).

Columns: the median time of a call with the quartiles of the rounds; that time over our first line's;
nanoseconds of a thread for each normal number drawn; what share of the time drawing alone would take
(the kernels' own noise source, compiled and timed in the same run); and by how much a call grows
the resident set of a fresh process at its peak.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from typing import Any

import curves
import jobs
import mnist
import stages
import torch
from measure import Call, Timing, interleaved, machine, once, peak_growth

Result = dict[str, Any]

HEADER = """\
| job | who | time | quartiles | times ours | ns a normal | noise | peak memory |
|---|---|---:|---:|---:|---:|---:|---:|"""


class Benchmark:
    def __init__(self, rounds: int, compiled: bool, root: str) -> None:
        self.rounds, self.compiled, self.root = rounds, compiled, root
        self.noise = stages.nanoseconds_a_normal()

    def timed(self, job: jobs.Job) -> Iterator[Result]:
        times = interleaved(jobs.calls(job, self.compiled), self.rounds)
        ours = next(iter(times.values())).median
        for name, timing in times.items():
            normals = jobs.normals(job, name)
            result = self.result(str(job), name, timing, ours)
            if normals is not None:
                result["ns a normal"] = 1e9 * timing.median * torch.get_num_threads() / normals
                if self.noise is not None:
                    result["noise"] = self.noise / result["ns a normal"]
            if name != jobs.COMPILED:
                small = job._replace(rows=2, samples=2)
                result["peak bytes"] = peak_growth(jobs.call, job, name, warm_up=(small, name))
            yield result

    def mnist(self) -> Iterator[Result]:
        if not mnist.available(self.root):
            print(f"(no MNIST/raw in {self.root}: see --root)")
            return
        times = interleaved(mnist.epochs(self.root), self.rounds)
        for name, timing in times.items():
            yield self.result("MNIST, training epoch, S4", name, timing, times["hetnet_ext"].median)

        ours = interleaved({"hetnet_ext": mnist.uncertainty(self.root)}, self.rounds)["hetnet_ext"]
        title = f"MNIST, uncertainty of the test set, S{mnist.SAMPLES}"
        result = self.result(title, "hetnet_ext", ours, ours.median)
        result["peak bytes"] = peak_growth(mnist.uncertainty, self.root, warm_up=(self.root, 2))
        yield result
        if machine()["probly"] is not None:
            probly: Call = mnist.probly_uncertainty(self.root)
            yield self.result(title, "probly", once(probly), ours.median)

    @staticmethod
    def result(job: str, who: str, timing: Timing, ours: float) -> Result:
        return {"job": job, "who": who, "seconds": timing._asdict(), "times ours": timing.median / ours}


def line(result: Result) -> str:
    median, low, high = (_time(result["seconds"][key]) for key in ("median", "low", "high"))
    peak = result.get("peak bytes")
    cells = [
        result["job"],
        result["who"],
        median,
        f"{low} to {high}",
        f"{result['times ours']:.1f}",
        f"{result['ns a normal']:.2f}" if "ns a normal" in result else "",
        f"{result['noise']:.0%}" if "noise" in result else "",
        "" if peak is None else f"{peak / 1e6:,.1f} MB",
    ]
    return "| " + " | ".join(cells) + " |"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f} ms" if seconds < 0.1 else f"{seconds * 1e3:,.0f} ms"


CASES = {"inference": jobs.INFERENCE, "small": jobs.SMALL, "training": jobs.TRAINING, "large": jobs.LARGE}
OTHERS = ("mnist", "growth", "threads", "stages")


def main() -> None:
    parser = argparse.ArgumentParser(
        "python benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*CASES, *OTHERS]
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(names)} (all)")
    parser.add_argument("--rounds", type=int, default=9, help="counted rounds (%(default)s)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads (%(default)s)")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile, which takes its minutes")
    parser.add_argument("--root", default="~/.cache/hetnet_ext", help="folder of MNIST/raw (%(default)s)")
    parser.add_argument("--json", help="file for the report")
    parser.add_argument("--plot", help="file for a picture of it")
    options = parser.parse_args()
    unknown = set(options.cases) - set(names)
    if unknown:
        parser.error(f"expected cases among {', '.join(names)}, got {', '.join(sorted(unknown))}")
    chosen = options.cases or names

    torch.set_num_threads(options.threads)
    benchmark = Benchmark(options.rounds, not options.no_compile, os.path.expanduser(options.root))
    report: dict[str, Any] = {"machine": machine(), "noise, ns a normal": benchmark.noise, "results": []}
    print(", ".join(f"{key} {value}" for key, value in report["machine"].items()))
    if benchmark.noise is not None:
        print(f"drawing a normal: {benchmark.noise:.2f} ns of a thread")
    if set(chosen) - {"growth", "threads", "stages"}:
        print(f"\n{HEADER}")

    for name in chosen:
        lines = (
            benchmark.mnist() if name == "mnist" else (r for job in CASES.get(name, []) for r in benchmark.timed(job))
        )
        for result in lines:
            report["results"].append(result)
            print(line(result), flush=True)
    if "stages" in chosen and benchmark.noise is not None:
        print("\nwhere the time of mc_nll_loss goes, one thread")
        report["stages"] = {str(job): stages.shares(job._replace(rows=16)) for job in [jobs.SMALL[1], *jobs.TRAINING]}
        for job, shares in report["stages"].items():
            print(f"  {job}: " + ", ".join(f"{stage} {share:.0%}" for stage, share in shares.items()))
    for name in ("growth", "threads"):
        if name in chosen:
            report[name] = getattr(curves, name)(options.rounds)
            print(f"\n{name}, ms")
            for title, points in report[name].items():
                print(f"  {title}: " + "; ".join(f"{who} {_points(p)}" for who, p in points.items()), flush=True)

    if options.json:
        with open(options.json, "w") as file:
            json.dump(report, file, indent=1)
    if options.plot:
        import plot

        plot.save(report, options.plot)


def _points(points: list[tuple[int, float]]) -> str:
    return ", ".join(f"{size}: {ms:.3g}" for size, ms in points)


if __name__ == "__main__":
    main()
