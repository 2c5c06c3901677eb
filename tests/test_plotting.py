"""Which images are drawn, and how they are labelled."""

from __future__ import annotations

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from hetnet_ext.plotting import plot_mnist_uncertainty


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.mark.parametrize("as_type", [np.asarray, torch.from_numpy, lambda x: x.tolist()])
def test_the_most_uncertain_come_first(as_type):
    uncertainty = np.array([3, 250, 0, 7, 9, 1, 8], dtype=np.uint8)
    labels, probs = np.arange(7), np.eye(10)[:7]
    images = np.zeros((7, 28, 28)) + np.arange(7)[:, None, None]
    figure = plot_mnist_uncertainty(*map(as_type, (images, labels, uncertainty, probs)), title="Digits")
    pictures, bars = figure.axes[:5], figure.axes[5:]
    assert figure.get_suptitle() == "Digits"
    assert [axes.images[0].get_array()[0, 0] for axes in pictures] == [1, 4, 6, 3, 0]
    assert pictures[0].get_title() == "label 1, predicted 1\n250.00 bits"
    assert [bar.get_height() for bar in bars[1].patches] == list(probs[4])


def test_tensors_that_require_gradients_and_half_precision():
    images, labels = torch.zeros(2, 28, 28), torch.zeros(2)
    probs = torch.rand(2, 10, requires_grad=True)
    figure = plot_mnist_uncertainty(images, labels, torch.rand(2).bfloat16(), probs)
    assert len(figure.axes) == 4  # two images are all there are


def test_saved(tmp_path):
    figure = plot_mnist_uncertainty(torch.zeros(2, 28, 28), torch.zeros(2), torch.rand(2), torch.rand(2, 10))
    figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
