"""The head's loss with its gradients, against the head in vectorised PyTorch.

    python benchmarks/training_loss.py [--compile]

Times of loss and backward, from the head's parameters (which require gradients) on; medians of
interleaved rounds in one process. `--compile` adds `torch.compile` of the vectorised head.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from measure import interleaved, machine
from torch import Tensor

from hetnet_ext import functional

Step = Callable[[], None]

# form (FA: a factor for each row, PE: one shared factor, scaled), rows, classes, factors, samples
SHAPES = [
    ("FA", 256, 10, 10, 4),
    ("FA", 128, 10, 10, 100),
    ("FA", 128, 100, 15, 100),
    ("FA", 128, 100, 15, 1000),
    ("FA", 64, 1000, 15, 100),
    ("PE", 64, 1000, 15, 100),
]


def vectorised(loc: Tensor, scale: Tensor, factor: Tensor, factor_scale: Tensor | None, samples: int) -> Tensor:
    eps = torch.randn(samples, *loc.shape)
    eta = torch.randn(samples, len(loc), factor.shape[-1])
    if factor_scale is None:
        low_rank = torch.einsum("bkr,sbr->sbk", factor, eta)
    else:
        low_rank = torch.einsum("kr,sbr->sbk", factor, eta * factor_scale)
    return (loc + scale * eps + low_rank).softmax(-1).mean(0).log()


def head(form: str, rows: int, classes: int, factors: int) -> list[Tensor | None]:
    loc, scale = torch.randn(rows, classes), F.softplus(torch.randn(rows, classes))
    if form == "FA":
        tensors = [loc, scale, torch.randn(rows, classes, factors) / 2, None]
    else:
        tensors = [loc, scale, torch.randn(classes, factors) / 3, torch.randn(rows, factors)]
    return [tensor if tensor is None else tensor.requires_grad_() for tensor in tensors]


def losses(form: str, rows: int, classes: int, factors: int, samples: int, with_compiled: bool) -> dict[str, Step]:
    """For each way to the loss, one step: loss and backward."""
    parameters = head(form, rows, classes, factors)
    loc, scale, factor, factor_scale = parameters
    target = torch.randint(classes, (rows,))

    def step(loss: Callable[[], Tensor]) -> Step:
        def run() -> None:
            for parameter in parameters:
                if parameter is not None:
                    parameter.grad = None
            loss().backward()

        return run

    def one_pass() -> Tensor:
        return functional.mc_nll_loss(loc, scale, target, factor, factor_scale, num_samples=samples)

    def drop_in() -> Tensor:
        return F.nll_loss(functional.mc_log_probs(loc, scale, factor, factor_scale, num_samples=samples), target)

    def eager() -> Tensor:
        return F.nll_loss(vectorised(loc, scale, factor, factor_scale, samples), target)

    steps = {
        "`mc_nll_loss`": step(one_pass), "`F.nll_loss` of `mc_log_probs`": step(drop_in), "eager": step(eager)
    }  # fmt: skip
    if with_compiled:
        compiled = torch.compile(vectorised, dynamic=False)
        steps["compiled"] = step(lambda: F.nll_loss(compiled(loc, scale, factor, factor_scale, samples), target))
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true", help="time torch.compile of the vectorised head too")
    parser.add_argument("--repeats", type=int, default=15, help="counted rounds (%(default)s)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads (%(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(f"{machine()}\n")
    print("| head | | time | times one pass |\n|---|---|---:|---:|")
    for shape in SHAPES:
        times = interleaved(losses(*shape, arguments.compile), arguments.repeats)
        title = "{} B{} K{} R{} S{}".format(*shape)
        for name, value in times.items():
            ratio = value / times["`mc_nll_loss`"]
            print(f"| {title} | {name} | {value * 1e3:,.3f} ms | {ratio:,.1f} |", flush=True)


if __name__ == "__main__":
    main()
