"""A Het-Net on MNIST: a training epoch, and the uncertainty of the test set, with its loaders and backbone."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import Call
from peers import VectorisedLayer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hetnet_ext import HeteroscedasticLayer, het_net, quantify, representer
from hetnet_ext.data import load_mnist
from hetnet_ext.models import MLPClassifier

ROWS, SAMPLES, TRAINING_SAMPLES = 10_000, 800, 4


@cache
def _loaders(root: str) -> tuple[DataLoader, DataLoader]:
    return load_mnist(256, root, "full")


def available(root: str) -> bool:
    return (Path(root) / "MNIST" / "raw").is_dir()


def test_images(root: str) -> Tensor:
    return torch.cat([x for x, _ in _loaders(root)[1]]).flatten(1)


def uncertainty(root: str, rows: int = ROWS) -> Call:
    images = test_images(root)[:rows]
    model = het_net(MLPClassifier(784, 256, 10)).eval()
    return lambda: quantify(representer(model, SAMPLES).represent(images)).aleatoric


def probly_uncertainty(root: str) -> Call:
    """The same through the library that the example comes from."""
    from probly.method.het_net import het_net
    from probly.quantification import quantify
    from probly.representer import representer

    images = test_images(root)
    model = het_net(MLPClassifier(784, 256, 10), predictor_type="logit_classifier").eval()

    def run() -> object:
        with torch.no_grad():
            return quantify(representer(model, num_samples=SAMPLES).represent(images)).aleatoric

    return run


def epochs(root: str) -> dict[str, Call]:
    from torchvision import datasets, transforms

    train, _ = _loaders(root)
    original = DataLoader(
        datasets.MNIST(root, train=True, transform=transforms.ToTensor()), batch_size=256, shuffle=True
    )
    model = het_net(MLPClassifier(784, 256, 10))
    for module in model.modules():
        if isinstance(module, HeteroscedasticLayer):
            module.training_samples = TRAINING_SAMPLES
    peer = MLPClassifier(784, 256, 10)
    peer.layers[-1] = VectorisedLayer(256, 10, 10, TRAINING_SAMPLES)
    return {
        "hetnet_ext": lambda: _train(model, train),
        "eager head": lambda: _train(peer, train),
        "eager head, torchvision's loader": lambda: _train(peer, original),
    }


def _train(model: nn.Module, batches: DataLoader) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for images, labels in batches:
        optimizer.zero_grad()
        F.nll_loss(model(images.flatten(1)), labels).backward()
        optimizer.step()
