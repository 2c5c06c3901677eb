"""What setup.py says before it compiles anything, where a CUDA build cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from backend import native_only

ROOT = Path(__file__).resolve().parent.parent
pytestmark = native_only

NVCC = """#!/bin/sh
echo "Cuda compilation tools, release {release}, V{release}.1"
"""


def setup(tmp_path: Path, *, release: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs setup.py for the package's name alone, with an nvcc of a release, or none."""
    home = tmp_path / "cuda"
    (home / "bin").mkdir(parents=True)
    if release is not None:
        nvcc = home / "bin" / "nvcc"
        nvcc.write_text(NVCC.format(release=release))
        nvcc.chmod(0o755)
    variables = {**os.environ, "FORCE_CUDA": "1", "CUDA_HOME": str(home), **environment}
    return subprocess.run(
        [sys.executable, "setup.py", "--name"], cwd=ROOT, env=variables, capture_output=True, text=True
    )


def error(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode != 0, result.stdout
    return result.stderr.strip().splitlines()[-1]


def own_release() -> str:
    if torch.version.cuda is None:
        pytest.skip("torch has no CUDA")
    return torch.version.cuda


def test_force_cuda_is_0_or_1(tmp_path):
    assert error(setup(tmp_path, FORCE_CUDA="yes")) == "hetnet_ext: FORCE_CUDA: expected 0 or 1, got 'yes'"


def test_no_nvcc(tmp_path):
    own_release()
    assert error(setup(tmp_path)) == (
        "hetnet_ext: a CUDA build needs nvcc, which is neither in $CUDA_HOME/bin nor on the path: set CUDA_HOME"
    )


def test_cpu_only_torch(tmp_path):
    if torch.version.cuda is None:
        result = setup(tmp_path, release="13.0")
    else:
        # stands in for such a torch at import
        (tmp_path / "sitecustomize.py").write_text("import torch\ntorch.version.cuda = None\n")
        result = setup(tmp_path, release="13.0", PYTHONPATH=str(tmp_path))
    assert error(result) == (
        f"hetnet_ext: a CUDA build needs a torch with CUDA, found {torch.__version__}: install one, or unset FORCE_CUDA"
    )


def test_other_cuda(tmp_path):
    own = own_release()
    assert error(setup(tmp_path, release="7.5")) == (
        f"hetnet_ext: nvcc is of CUDA 7.5, torch of CUDA {own}: set CUDA_HOME to a toolkit of the same major version"
    )


def test_no_architecture(tmp_path):
    result = setup(tmp_path, release=own_release(), TORCH_CUDA_ARCH_LIST=" ")
    assert error(result) == (
        "hetnet_ext: no CUDA architecture to build for: set TORCH_CUDA_ARCH_LIST, to 9.0 for example"
    )


def test_all_is_there(tmp_path):
    result = setup(tmp_path, release=own_release(), TORCH_CUDA_ARCH_LIST="9.0")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().endswith("hetnet_ext")
