"""Pictures of the examples. Needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike, NDArray

__all__ = ["plot_mnist_uncertainty"]


def plot_mnist_uncertainty(
    images: ArrayLike,
    labels: ArrayLike,
    uncertainty: ArrayLike,
    mean_probs: ArrayLike,
    title: str = "",
    num_images: int = 5,
) -> Figure:
    """Draws the most uncertain images over bars of their predicted probabilities.

    Args:
        images: (N, H, W) grey values.
        labels: (N,) true classes.
        uncertainty: (N,) uncertainty in bits.
        mean_probs: (N, K) predicted probabilities.
        title: Title of the figure.
        num_images: How many of the images to show.

    Returns:
        The figure: ``.show()`` it or ``.savefig(path)``.

    Raises:
        ValueError: The arguments differ in their number of images, or have none.
    """
    import matplotlib.pyplot as plt

    images, labels, uncertainty, mean_probs = map(_to_numpy, (images, labels, uncertainty, mean_probs))
    uncertainty = uncertainty.astype(np.float64)
    count = len(images) if images.ndim == 3 else 0
    if count == 0:
        raise ValueError(f"images: expected shape (N, H, W) with at least one image, got {images.shape}")
    for name, array, dimensions in (
        ("labels", labels, 1),
        ("uncertainty", uncertainty, 1),
        ("mean_probs", mean_probs, 2),
    ):
        if array.ndim != dimensions or len(array) != count:
            raise ValueError(f"{name}: expected {dimensions} dimensions, {count} long as images, got {array.shape}")
    if num_images < 1:
        raise ValueError(f"num_images: expected at least 1, got {num_images}")
    chosen = np.argsort(-uncertainty, kind="stable")[:num_images]
    classes = np.arange(mean_probs.shape[-1])

    figure, axes = plt.subplots(
        2, len(chosen), figsize=(2.2 * len(chosen), 4.2), squeeze=False, height_ratios=(3, 2), layout="constrained"
    )
    figure.suptitle(title)
    for (picture, bars), i in zip(axes.T, chosen, strict=True):
        predicted = mean_probs[i].argmax()
        picture.imshow(images[i], cmap="gray_r")
        picture.set_title(f"label {labels[i]}, predicted {predicted}\n{uncertainty[i]:.2f} bits", fontsize=9)
        picture.set_axis_off()
        colors = np.where(classes == labels[i], "tab:green", "tab:gray")
        bars.bar(classes, mean_probs[i], color=colors)
        bars.set(ylim=(0, 1), xticks=classes, xlabel="class")
        bars.tick_params(labelsize=7)
        bars.spines[["top", "right"]].set_visible(False)
    axes[1, 0].set_ylabel("probability")
    for bars in axes[1, 1:]:
        bars.set_yticklabels([])
    return figure


def _to_numpy(array: ArrayLike) -> NDArray[np.generic]:
    if isinstance(array, Tensor):
        array = array.detach().cpu()
        return array.float().numpy() if array.is_floating_point() else array.numpy()
    return np.asarray(array)
