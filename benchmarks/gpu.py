"""All that a machine with a GPU can tell of the CUDA kernels, in one run.

``python benchmarks/gpu.py`` needs a CUDA build of hetnet_ext, and prints:

- whether the GPU's results are the CPU's: the noise bit for bit, everything else by its largest difference;
- whether they have the same bits from run to run, and in a CUDA graph;
- a table of jobs: median times of loss and backward (or statistics), peers interleaved with ours; the peak of
  memory beyond what was there before; and the share of the bound that ``benchmarks/cuda_bound.py`` reads off the
  instructions.

It exits with an error where a result is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import jobs
import peers
import torch
import torch.nn.functional as F
from jobs import Job
from torch import Tensor

import hetnet_ext
from hetnet_ext import functional

JOBS = [
    Job("loss", "FA", 128, 1000, 15, 1000),
    Job("loss", "FA", 2048, 1000, 15, 100),
    Job("loss", "PE", 32, 21_843, 50, 1000),
    Job("loss", "diagonal", 64, 32_128, 0, 1000),
    Job("statistics", "FA", 10_000, 10, 10, 800),
    Job("statistics", "FA", 1, 1000, 15, 1000),
    Job("loss", "FA", 256, 10, 10, 4),
]
# Instructions of a sample of a class, as cuda_bound.py counts them for a diagonal head; each factor adds its
# multiply-adds: one for the utility, one for the gradient. Tiles of classes draw twice.
INSTRUCTIONS = {"loss": 75, "statistics": 72}
TILE_INSTRUCTIONS = 74 + 65
SIZES = [(40, 10, 10, 4), (9, 10, 10, 300), (5, 101, 15, 500), (5, 100, 50, 100), (3, 1000, 15, 40), (2, 3000, 50, 20)]
CHECKED = [
    Job("loss", form, rows, classes, 0 if form == "diagonal" else factors, samples)
    for form in ("FA", "PE", "diagonal")
    for rows, classes, factors, samples in SIZES
]


def leaves(job: Job, device: str, dtype: torch.dtype = torch.float32) -> list[Tensor | None]:
    return [x if x is None else x.to(device, dtype).detach().requires_grad_() for x in jobs.head(job)]


def target_of(job: Job, device: str) -> Tensor:
    return (torch.arange(job.rows) * 7 % job.classes).to(device)


def everything(job: Job, device: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """All results and gradients, by name, in the CPU's memory."""
    parameters = leaves(job, device, dtype)
    loc, scale, factor, factor_scale = parameters
    inputs = [x for x in parameters if x is not None]
    options = {"num_samples": job.samples, "seed": torch.tensor([5, 2**32 - 1], device=device)}
    results = {}

    def add(name: str, output: Tensor) -> None:
        upstream = torch.sin(1 + torch.arange(output.numel(), dtype=torch.float64)).reshape(output.shape)
        results[name] = output
        for i, gradient in enumerate(torch.autograd.grad(output, inputs, upstream.to(device, dtype))):
            results[f"{name}, gradient {i}"] = gradient

    add("sample_logits", functional.sample_logits(*parameters, **options))
    add("mc_log_probs", functional.mc_log_probs(*parameters, **options))
    add("mc_nll_loss", functional.mc_nll_loss(loc, scale, target_of(job, device), factor, factor_scale, **options))
    for sampling in ("factored", "cholesky") if job.classes <= 101 else ("factored",):
        statistics = functional.mc_statistics(*parameters, **options, sampling=sampling)
        fields = ("mean", "variance", "expected_entropy")
        results.update({f"{sampling} {name}": getattr(statistics, name) for name in fields})
    return {name: x.detach().cpu() for name, x in results.items()}


def check_noise(device: str) -> bool:
    zeros, ones = torch.zeros(7, 301), torch.ones(7, 301)
    options = {"num_samples": 1000, "row_offset": 2**32 - 3, "seed": -5}
    on_cpu = functional.sample_logits(zeros, ones, **options)
    on_gpu = functional.sample_logits(zeros.to(device), ones.to(device), **options).cpu()
    same = torch.equal(on_cpu, on_gpu)
    print(f"noise: {on_cpu.numel()} normals, {'the same bits as the CPU' if same else 'NOT THE SAME as on the CPU'}")
    return same


def check_results(device: str) -> bool:
    """Differences are relative to the largest number of a result: some tens of roundings, of sums over samples."""
    right = True
    for dtype, tolerance in ((torch.float32, 5e-5), (torch.float64, 1e-12)):
        worst, where = 0.0, ""
        for job in CHECKED:
            want, got = everything(job, "cpu", dtype), everything(job, device, dtype)
            again = everything(job, device, dtype)
            for name, value in want.items():
                difference = float((got[name] - value).abs().max() / value.abs().max().clamp(min=1e-30))
                if not difference <= worst:
                    worst, where = difference, f"{name} of {job}"
                if not torch.equal(got[name], again[name]):
                    print(f"NOT DETERMINISTIC: {name} of {job}, {dtype}")
                    right = False
        print(f"{dtype}: largest difference from the CPU {worst:.1e} ({where}); the same bits in a second run")
        right = right and worst <= tolerance
    return right


def check_graph() -> bool:
    """Captured once, replayed with another seed."""
    job = Job("loss", "FA", 64, 100, 15, 100)
    parameters = leaves(job, "cuda")
    loc, scale, factor, _ = parameters
    target, seed = target_of(job, "cuda"), torch.tensor([1, 0], device="cuda")

    def step() -> tuple[Tensor, Tensor]:
        loss = functional.mc_nll_loss(loc, scale, target, factor, num_samples=job.samples, seed=seed)
        return loss, torch.autograd.grad(loss, factor)[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    right = True
    for value in (1, 2):
        seed[0] = value
        want = step()
        graph.replay()
        right = right and all(torch.equal(a, b) for a, b in zip(want, captured, strict=True))
    print(f"CUDA graph: {'the same bits as eager, for two seeds' if right else 'WRONG'}")
    return right


def calls(job: Job, with_compiled: bool) -> dict[str, Callable[[], object]]:
    parameters = leaves(job, "cuda")
    loc, scale, factor, factor_scale = parameters
    target = target_of(job, "cuda")
    if job.kind == "statistics":
        with_mean: dict[str, Callable[..., object]] = {
            jobs.STATISTICS: lambda: functional.mc_statistics(*parameters, num_samples=job.samples),
            jobs.EAGER: torch.no_grad()(lambda: peers.statistics(*parameters, job.samples)),
        }
        if job.factors >= job.classes:
            with_mean[jobs.CHOLESKY] = lambda: functional.mc_statistics(
                *parameters, num_samples=job.samples, sampling="cholesky"
            )
        if with_compiled:
            compiled = torch.compile(peers.statistics, dynamic=False)
            with_mean[jobs.COMPILED] = torch.no_grad()(lambda: compiled(*parameters, job.samples))
        return with_mean

    losses: dict[str, Callable[[], Tensor]] = {
        jobs.ONE_PASS: lambda: functional.mc_nll_loss(
            loc, scale, target, factor, factor_scale, num_samples=job.samples
        ),
        jobs.DROP_IN: lambda: F.nll_loss(functional.mc_log_probs(*parameters, num_samples=job.samples), target),
        jobs.EAGER: lambda: F.nll_loss(peers.log_probs(*parameters, job.samples), target),
    }
    if with_compiled:
        compiled_log_probs = torch.compile(peers.log_probs, dynamic=False)
        losses[jobs.COMPILED] = lambda: F.nll_loss(compiled_log_probs(*parameters, job.samples), target)

    def step(loss: Callable[[], Tensor]) -> Callable[[], object]:
        inputs = [x for x in parameters if x is not None]
        return lambda: torch.autograd.grad(loss(), inputs)

    return {name: step(loss) for name, loss in losses.items()}


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats


def peak_bytes(call: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def run_job(job: Job, rounds: int, with_compiled: bool, gigahertz: float) -> None:
    peak, repeats = {}, {}
    runnable = calls(job, with_compiled)
    for name, call in list(runnable.items()):
        try:
            call()
            peak[name] = peak_bytes(call)
            repeats[name] = max(1, round(20 / max(milliseconds(call, 1), 0.01)))
        except torch.OutOfMemoryError:
            del runnable[name]
            torch.cuda.empty_cache()
            print(f"| {job} | {name} | does not fit | | | |", flush=True)
    times: dict[str, list[float]] = {name: [] for name in runnable}
    for _ in range(rounds):
        for name, call in runnable.items():
            times[name].append(milliseconds(call, repeats[name]))
    median = {name: sorted(values)[len(values) // 2] for name, values in times.items()}
    ours = next(iter(median))

    per_item = TILE_INSTRUCTIONS if job.classes > 1024 else INSTRUCTIONS[job.kind]
    products = job.factors * (2 if job.kind == "loss" else 1)
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    items = job.rows * job.samples * job.classes
    bound = items * (per_item + products) / (processors * 4 * 32 * gigahertz * 1e6)
    for name, time in median.items():
        share = f"{bound / time:.0%}" if name == ours else ""
        print(
            f"| {job} | {name} | {time:.3f} | {time / median[ours]:.1f} | {share} | {peak[name] / 1e6:.1f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--gigahertz", type=float, default=1.755, help="the GPU's clock, for the bound")
    arguments = parser.parse_args()
    if hetnet_ext.cuda_version() is None or not torch.cuda.is_available():
        sys.exit("needs a GPU and a CUDA build of hetnet_ext: see `python -m hetnet_ext`")

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, kernels of CUDA {hetnet_ext.cuda_version()}\n")
    right = [check_noise("cuda"), check_results("cuda"), check_graph()]
    print("\n| job | who | ms | times ours | of the bound | MB |\n|---|---|---:|---:|---:|---:|")
    for job in JOBS:
        run_job(job, arguments.rounds, not arguments.no_compile, arguments.gigahertz)
    if not all(right):
        sys.exit("some results are wrong: see above")


if __name__ == "__main__":
    main()
