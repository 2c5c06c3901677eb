"""The examples, run as a reader runs them, with bounds that a broken head fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
MNIST_ROOT = os.environ.get("HETNET_MNIST_ROOT")
SEED_EXAMPLE = os.environ.get("HETNET_SEED_EXAMPLE")


def run(script: Path, *arguments: str, folder: Path) -> str:
    command = [sys.executable, str(script), *arguments]
    environment = {**os.environ, "MPLBACKEND": "agg"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def numbers(pattern: str, text: str) -> list[float]:
    found = re.search(pattern, text)
    assert found, text
    return [float(number) for number in found.groups()]


def check_mnist(output: str, least_accuracy: float, least_ratio: float) -> None:
    averaged, one_draw = numbers(r"test accuracy: ([\d.]+)% averaged, ([\d.]+)% from one noisy draw", output)
    right, wrong = numbers(r"mean uncertainty: ([\d.]+) bits if right, ([\d.]+) if wrong", output)
    assert averaged >= least_accuracy
    assert least_accuracy - 2 <= one_draw <= averaged + 0.5
    assert wrong >= least_ratio * right


def test_mnist_mini(tmp_path):
    output = run(EXAMPLES / "het_net_mnist.py", "--data", "mini", "--seed", "1", folder=tmp_path)
    check_mnist(output, least_accuracy=90, least_ratio=4)
    assert (tmp_path / "het_net_mnist.png").stat().st_size > 10_000


def test_mnist_mini_in_one_pass(tmp_path):
    output = run(EXAMPLES / "het_net_mnist.py", "--data", "mini", "--one-pass", "--epochs", "12", folder=tmp_path)
    check_mnist(output, least_accuracy=90, least_ratio=4)


@pytest.mark.skipif(MNIST_ROOT is None, reason="needs MNIST: HETNET_MNIST_ROOT")
@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_mnist_full(tmp_path, seed):
    output = run(EXAMPLES / "het_net_mnist.py", "--data", "full", "--root", MNIST_ROOT, "--seed", seed, folder=tmp_path)
    print(output)
    check_mnist(output, least_accuracy=96.7, least_ratio=5)


def test_two_moons(tmp_path):
    output = run(EXAMPLES / "two_moons.py", folder=tmp_path)
    (accuracy,) = numbers(r"without noise: ([\d.]+)%", output)
    noisy, clean = numbers(r"uncertainty: ([\d.]+) bits where labels flip, ([\d.]+) elsewhere", output)
    assert accuracy > 99
    assert clean < 0.15
    assert noisy == pytest.approx(0.72, abs=0.17)  # labels alone have 0.88 bits; not all of it is label noise
    assert (tmp_path / "two_moons.png").stat().st_size > 10_000


@pytest.mark.skipif(SEED_EXAMPLE is None, reason="needs the example for probly: HETNET_SEED_EXAMPLE")
def test_example_for_probly(tmp_path):
    """The script that is written against probly, with only its imports changed."""
    text = Path(SEED_EXAMPLE).read_text()
    headings = r"Setup|Model|Training|Uncertainty Quantification|Predictions|Visualization"
    prose = rf"^({headings}|Het-Net augments .*|Setting training_samples .*|The representer .*|Test accuracy: \d.*)$"
    code = re.sub(prose, "", text[text.index("from __future__") :], flags=re.MULTILINE)
    for theirs, ours in {
        "probly.layers.torch": "hetnet_ext",
        "probly.method.het_net": "hetnet_ext",
        "probly.quantification": "hetnet_ext",
        "probly.representer": "hetnet_ext",
        "probly_benchmark.data": "hetnet_ext.data",
        "examples.utils.model": "hetnet_ext.models",
        "examples.utils.plotting": "hetnet_ext.plotting",
    }.items():
        code = code.replace(f"from {theirs} import", f"from {ours} import")
    script = tmp_path / "example.py"
    script.write_text(code)
    (accuracy,) = numbers(r"Test accuracy: ([\d.]+)%", run(script, folder=tmp_path))
    assert accuracy > 80  # five epochs, on the subset where there is no network
