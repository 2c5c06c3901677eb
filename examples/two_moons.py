"""A Het-Net finds where labels are noisy: two moons, one end of which has flipped labels.

    python examples/two_moons.py

The labels of the right-hand third are flipped with probability 0.3. The map shows the
aleatoric uncertainty: it is high there and between the moons, and low elsewhere.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hetnet_ext import HeteroscedasticLayer, het_net, quantify, representer
from hetnet_ext.models import MLPClassifier

FLIPPED_FROM = 1.0  # labels are noisy where the first coordinate is larger
FLIP_PROBABILITY = 0.3


def two_moons(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points, labels as observed, and labels without noise."""
    clean = torch.arange(count) % 2
    angle = math.pi * torch.rand(count)
    upper = torch.stack((angle.cos(), angle.sin()), -1)
    lower = torch.stack((1 - angle.cos(), 0.5 - angle.sin()), -1)
    points = torch.where(clean[:, None] == 0, upper, lower) + 0.1 * torch.randn(count, 2)
    flipped = (points[:, 0] > FLIPPED_FROM) & (torch.rand(count) < FLIP_PROBABILITY)
    return points, clean ^ flipped, clean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=4000, help="points of the training set (%(default)s)")
    parser.add_argument("--epochs", type=int, default=60, help="epochs of training (%(default)s)")
    parser.add_argument("--training-samples", type=int, default=16, help="noise samples in training (%(default)s)")
    parser.add_argument("--samples", type=int, default=800, help="noise samples for the map (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("two_moons.png"), help="the figure (%(default)s)")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    start = time.perf_counter()

    points, labels, _ = two_moons(arguments.points)
    model = het_net(MLPClassifier(in_features=2, hidden_features=64, out_features=2))
    head = next(module for module in model.modules() if isinstance(module, HeteroscedasticLayer))
    head.training_samples = arguments.training_samples
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(arguments.epochs):
        for batch in torch.randperm(len(points)).split(500):
            optimizer.zero_grad()
            F.nll_loss(model(points[batch]), labels[batch]).backward()
            optimizer.step()
    head.training_samples = 1
    model.eval()

    x, y = torch.linspace(-1.5, 2.5, 200), torch.linspace(-1, 1.5, 200)
    grid = torch.cartesian_prod(x, y)
    uncertainty = quantify(representer(model, arguments.samples).represent(grid)).aleatoric / math.log(2)

    test_points, _, test_clean = two_moons(4000)
    representation = representer(model, arguments.samples).represent(test_points)
    bits = quantify(representation).aleatoric / math.log(2)
    noisy = test_points[:, 0] > FLIPPED_FROM
    accuracy = (representation.mean.argmax(-1) == test_clean).float().mean()
    print(f"accuracy against the labels without noise: {accuracy:.2%}")
    print(f"mean uncertainty: {bits[noisy].mean():.3f} bits where labels flip, {bits[~noisy].mean():.3f} elsewhere")

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    levels = np.linspace(0, 1, 21)
    filled = axes.contourf(x, y, uncertainty.view(200, 200).T, levels=levels, cmap="viridis", extend="max")
    figure.colorbar(filled, label="aleatoric uncertainty (bits)")
    shown = slice(0, 600)
    for label, marker in ((0, "o"), (1, "^")):
        chosen = points[shown][labels[shown] == label]
        axes.scatter(*chosen.T, s=10, marker=marker, edgecolors="black", linewidths=0.4, label=f"label {label}")
    axes.axvline(FLIPPED_FROM, color="white", linestyle="--", linewidth=1)
    axes.set(xlim=(-1.5, 2.5), ylim=(-1, 1.5), title="Labels flip with probability 0.3 right of the dashed line")
    axes.legend(loc="lower left", framealpha=0.9)
    figure.savefig(arguments.output, dpi=120)
    print(f"figure: {arguments.output}, {time.perf_counter() - start:.1f} s in all")


if __name__ == "__main__":
    main()
