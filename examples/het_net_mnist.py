"""A Het-Net learns handwritten digits and shows those that it is unsure of.

    python examples/het_net_mnist.py                 # MNIST if it can be had, else a small subset
    python examples/het_net_mnist.py --data mini     # needs no network

The head is trained on the log of the softmax averaged over a few noise samples. Afterwards
the uncertainty of each test image is the expected entropy over many samples.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from hetnet_ext import HeteroscedasticLayer, het_net, nll_loss, quantify, representer
from hetnet_ext.data import load_mnist
from hetnet_ext.models import MLPClassifier
from hetnet_ext.plotting import plot_mnist_uncertainty


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=("auto", "full", "mini"), default="auto", help="which MNIST (%(default)s)")
    parser.add_argument("--root", default="~/.cache/hetnet_ext", help="folder of MNIST/raw (%(default)s)")
    parser.add_argument("--epochs", type=int, default=20, help="most epochs of training (%(default)s)")
    parser.add_argument("--target", type=float, default=0.97, help="stop at this training accuracy (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=256, help="images in a batch (%(default)s)")
    parser.add_argument("--training-samples", type=int, default=4, help="noise samples in training (%(default)s)")
    parser.add_argument("--one-pass", action="store_true", help="train with the one-pass loss")
    parser.add_argument("--samples", type=int, default=800, help="noise samples for the uncertainty (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("het_net_mnist.png"), help="the figure (%(default)s)")
    return parser.parse_args()


def train(model: torch.nn.Module, batches, epochs: int, target: float, training_samples: int, one_pass: bool) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    heads = [module for module in model.modules() if isinstance(module, HeteroscedasticLayer)]
    for head in heads:
        head.training_samples = training_samples
    model.train()
    for epoch in range(1, epochs + 1):
        start, correct, total, summed_loss = time.perf_counter(), 0, 0, 0.0
        for images, labels in batches:
            optimizer.zero_grad()
            if one_pass:  # gives no predictions, so that the accuracy is not known
                loss = nll_loss(model, images.flatten(1), labels)
                correct = math.nan
            else:
                log_probs = model(images.flatten(1))
                loss = F.nll_loss(log_probs, labels)
                correct += (log_probs.argmax(-1) == labels).sum().item()
            loss.backward()
            optimizer.step()
            total += len(labels)
            summed_loss += loss.item() * len(labels)
        seconds = time.perf_counter() - start
        print(f"epoch {epoch}: loss {summed_loss / total:.4f}, accuracy {correct / total:.2%}, {seconds:.2f} s")
        if correct / total >= target:
            break
    for head in heads:
        head.training_samples = 1
    model.eval()


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    start = time.perf_counter()
    train_batches, test_batches = load_mnist(arguments.batch_size, arguments.root, arguments.data)
    images = torch.cat([x for x, _ in test_batches]).flatten(1)
    labels = torch.cat([y for _, y in test_batches])
    print(f"data: {len(train_batches.labels)} + {len(labels)} images, {time.perf_counter() - start:.2f} s")

    model = het_net(MLPClassifier(in_features=28 * 28, hidden_features=256, out_features=10))
    train(model, train_batches, arguments.epochs, arguments.target, arguments.training_samples, arguments.one_pass)

    sampling = time.perf_counter()
    representation = representer(model, arguments.samples).represent(images)
    uncertainty = quantify(representation).aleatoric / np.log(2)
    seconds = time.perf_counter() - sampling
    print(f"uncertainty: {len(images)} images x {arguments.samples} samples, {seconds:.3f} s")

    with torch.no_grad():
        one_draw = model(images)
    right = representation.mean.argmax(-1) == labels
    print(f"test accuracy: {right.float().mean():.2%} averaged, ", end="")
    print(f"{(one_draw.argmax(-1) == labels).float().mean():.2%} from one noisy draw")
    print(f"mean uncertainty: {uncertainty[right].mean():.3f} bits if right, {uncertainty[~right].mean():.3f} if wrong")

    plot = plot_mnist_uncertainty(
        (images.view(-1, 28, 28) * 255).byte(),
        labels,
        uncertainty,
        representation.mean,
        title="The most uncertain test digits",
    )
    plot.savefig(arguments.output, dpi=120)
    print(f"figure: {arguments.output}, {time.perf_counter() - start:.1f} s in all")


if __name__ == "__main__":
    main()
