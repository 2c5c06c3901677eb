"""A Het-Net on MNIST, in training and in inference, against what people use today.

    python benchmarks/mnist_job.py --root DIR        # DIR holds MNIST/raw

Peers run in the same process, interleaved with ours, and the table gives medians and ratios:

- eager, compiled: the head in vectorised PyTorch, in chunks of rows that fit the cache, with
  and without `torch.compile`;
- probly: the library that the example comes from, where it is installed (Python 3.13).

Peak memory is what the resident set of a fresh process grows by while our call runs, its
result included.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import interleaved, machine, seconds
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hetnet_ext import HeteroscedasticLayer, functional, het_net, quantify, representer
from hetnet_ext.data import load_mnist
from hetnet_ext.models import MLPClassifier

ROWS, CLASSES, FACTORS, SAMPLES = 10_000, 10, 10, 800
CHUNK = 250  # rows at a time: the fastest for the eager peer


def vectorised_statistics(loc: Tensor, scale: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    eps = torch.randn(SAMPLES, *loc.shape)
    eta = torch.randn(SAMPLES, len(loc), FACTORS)
    log_probs = (loc + scale * eps + torch.einsum("bkr,sbr->sbk", factor, eta)).log_softmax(-1)
    probs = log_probs.exp()
    return probs.mean(0), -(probs * log_probs).sum(-1).mean(0)


def in_chunks(function: Callable[..., tuple[Tensor, Tensor]], *tensors: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [function(*parts) for parts in zip(*(tensor.split(CHUNK) for tensor in tensors), strict=True)]


class VectorisedLayer(nn.Module):
    """The head in plain PyTorch, training with `samples` samples."""

    def __init__(self, features: int, classes: int, samples: int) -> None:
        super().__init__()
        self.classes, self.samples = classes, samples
        self.loc, self.scale = nn.Linear(features, classes), nn.Linear(features, classes)
        self.factor = nn.Linear(features, classes * FACTORS)

    def forward(self, x: Tensor) -> Tensor:
        loc, scale = self.loc(x), F.softplus(self.scale(x))
        factor = self.factor(x).view(-1, self.classes, FACTORS)
        eps, eta = torch.randn(self.samples, *loc.shape), torch.randn(self.samples, len(x), FACTORS)
        logits = loc + scale * eps + torch.einsum("bkr,sbr->sbk", factor, eta)
        return logits.softmax(-1).mean(0).log()


def train_epoch(model: nn.Module, batches) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for images, labels in batches:
        optimizer.zero_grad()
        F.nll_loss(model(images.flatten(1)), labels).backward()
        optimizer.step()


def peak_growth(case: str, root: str) -> float:
    """MB by which the first call of a case grows a fresh process's resident set, at its peak (Linux)."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_peak_growth, (case, root))


def _peak_growth(case: str, root: str) -> float:
    def status(key: str) -> int:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
        return int(line.split()[1])

    # A small call first, for what is loaded and started once.
    function = {"statistics": statistics_job, "inference": inference_job}[case]
    function(root, 2)()
    prepared = function(root, ROWS)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = status("VmRSS")
    kept = prepared()
    growth = status("VmHWM") - before
    del kept
    return growth / 1000


def report(title: str, times: dict[str, float], peak: float | None = None) -> None:
    ours = times["hetnet_ext"]
    for name, value in times.items():
        memory = f"{peak:.1f} MB" if peak is not None and name == "hetnet_ext" else ""
        print(f"| {title} | {name} | {value * 1e3:,.1f} ms | {value / ours:,.1f} | {memory} |", flush=True)


def random_head(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    loc, scale = 4 * torch.randn(rows, CLASSES), F.softplus(torch.randn(rows, CLASSES))
    return loc, scale, torch.randn(rows, CLASSES, FACTORS) / 2


def statistics_job(_: str, rows: int) -> Callable[[], object]:
    head = random_head(rows)
    return lambda: functional.mc_statistics(*head, num_samples=SAMPLES)


def inference_job(root: str, rows: int) -> Callable[[], object]:
    images = mnist_test_images(root)[:rows]
    model = het_net(MLPClassifier(784, 256, 10)).eval()
    return lambda: quantify(representer(model, SAMPLES).represent(images)).aleatoric


def mnist_test_images(root: str) -> Tensor:
    _, test = load_mnist(256, root, "full")
    return torch.cat([x for x, _ in test]).flatten(1)


def statistics_case(root: str, repeats: int) -> None:
    head = random_head(ROWS)
    compiled = torch.compile(vectorised_statistics)
    times = interleaved(
        {
            "hetnet_ext": statistics_job(root, ROWS),
            "hetnet_ext, Cholesky": lambda: functional.mc_statistics(*head, num_samples=SAMPLES, sampling="cholesky"),
            "eager": lambda: in_chunks(vectorised_statistics, *head),
            "compiled": lambda: in_chunks(compiled, *head),
        },
        repeats,
    )
    report("`mc_statistics`, 10,000 x 800", times, peak_growth("statistics", root))


def inference_case(root: str, repeats: int, with_probly: bool) -> None:
    ours = inference_job(root, ROWS)
    times = interleaved({"hetnet_ext": ours}, repeats)
    if with_probly:
        from probly.method.het_net import het_net as probly_het_net
        from probly.quantification import quantify as probly_quantify
        from probly.representer import representer as probly_representer

        peer = probly_het_net(MLPClassifier(784, 256, 10), predictor_type="logit_classifier").eval()
        images = mnist_test_images(root)

        def probly() -> object:
            with torch.no_grad():
                return probly_quantify(probly_representer(peer, num_samples=SAMPLES).represent(images)).aleatoric

        times["probly"] = seconds(probly)  # half a minute: once
    report("represent and quantify, MNIST test set", times, peak_growth("inference", root))


def training_case(root: str, repeats: int) -> None:
    from torchvision import datasets, transforms

    train, _ = load_mnist(256, root, "full")
    original = DataLoader(
        datasets.MNIST(root, train=True, transform=transforms.ToTensor()), batch_size=256, shuffle=True
    )
    model = het_net(MLPClassifier(784, 256, 10))
    for module in model.modules():
        if isinstance(module, HeteroscedasticLayer):
            module.training_samples = 4
    peer = MLPClassifier(784, 256, 10)
    peer.layers[-1] = VectorisedLayer(256, 10, samples=4)
    times = interleaved(
        {
            "hetnet_ext": lambda: train_epoch(model, train),
            "eager head": lambda: train_epoch(peer, train),
            "eager head, torchvision's loader": lambda: train_epoch(peer, original),
        },
        repeats,
    )
    report("training epoch, 60,000 images, S = 4", times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="~/.cache/hetnet_ext", help="folder of MNIST/raw (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="counted rounds (%(default)s)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads (%(default)s)")
    arguments = parser.parse_args()
    root = os.path.expanduser(arguments.root)
    torch.set_num_threads(arguments.threads)
    try:
        import probly
    except ImportError:
        probly = None

    print(f"{machine()}, probly {getattr(probly, '__version__', 'not installed')}\n")
    print("| job | | time | times ours | peak memory |\n|---|---|---:|---:|---:|")
    statistics_case(root, arguments.repeats)
    training_case(root, arguments.repeats)
    inference_case(root, arguments.repeats, with_probly=probly is not None)


if __name__ == "__main__":
    main()
