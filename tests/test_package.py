"""The package as it is installed, and what it says where it cannot work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import native_core
import pytest
import torch
from backend import native_only

import hetnet_ext

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(hetnet_ext.__file__).parent


def python(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **environment}
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=variables, capture_output=True, text=True)


def test_report(tmp_path):
    result = python("-m", "hetnet_ext", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert f"hetnet_ext    {hetnet_ext.__version__}\n" in result.stdout
    assert f"torch         {torch.__version__}\n" in result.stdout
    assert "CPU kernels" in result.stdout
    assert ("CUDA kernels  not in this build" in result.stdout) == (hetnet_ext.cuda_version() is None)


@pytest.mark.parametrize("capability", native_core.capabilities())
def test_capability_is_chosen(tmp_path, capability):
    result = python("-m", "hetnet_ext", folder=tmp_path, HETNET_CPU_CAPABILITY=capability)
    assert f"CPU kernels   {capability} " in result.stdout


def last_line(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode != 0
    return result.stderr.strip().splitlines()[-1]


def test_unknown_capability(tmp_path):
    result = python("-c", "import hetnet_ext", folder=tmp_path, HETNET_CPU_CAPABILITY="mmx")
    usable = ", ".join(native_core.capabilities())
    assert last_line(result) == f"ImportError: HETNET_CPU_CAPABILITY: expected one of {usable} on this CPU, got 'mmx'"


def test_unknown_backend(tmp_path):
    result = python("-c", "import hetnet_ext", folder=tmp_path, HETNET_BACKEND="fast")
    assert last_line(result) == "ImportError: HETNET_BACKEND: expected one of native, reference, got 'fast'"


def test_source_tree_without_a_build(tmp_path):
    """One sentence, where the source folder shadows the installed package."""
    shutil.copytree(ROOT / "hetnet_ext", tmp_path / "hetnet_ext", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tmp_path / "csrc").mkdir()
    for arguments in (("-c", "import hetnet_ext"), ("-m", "hetnet_ext")):
        message = last_line(python(*arguments, folder=tmp_path))
        assert message.startswith(
            f"ImportError: hetnet_ext was imported from its source tree ({tmp_path}), which holds no compiled library: "
        )
        assert "pip install -e ." in message


def test_broken_installation(tmp_path):
    shutil.copytree(ROOT / "hetnet_ext", tmp_path / "hetnet_ext", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    message = last_line(python("-c", "import hetnet_ext", folder=tmp_path))
    assert message.endswith("holds no compiled library: reinstall it with `pip install .`")


def test_typed():
    assert (PACKAGE / "py.typed").is_file()


def test_every_public_name():
    for name in hetnet_ext.__all__:
        assert hasattr(hetnet_ext, name)
    names = "HeteroscedasticLayer het_net representer HetNetRepresentation quantify functional data models plotting"
    assert set(names.split()) < set(hetnet_ext.__all__)


@native_only
def test_one_library_for_every_python():
    assert [path.name for path in PACKAGE.glob("_C*")] == ["_C.abi3.so"]


@native_only
@pytest.mark.parametrize("variable", ["HETNET_CPU_CAPABILITY", "HETNET_BACKEND"])
def test_switches_give_the_same_answer(tmp_path, variable):
    """Of the instruction sets and of the reference, to float32's last places."""
    script = (
        "import torch; from hetnet_ext import functional as f;"
        "g = torch.Generator().manual_seed(0); n = lambda *s: torch.randn(*s, generator=g);"
        "print(f.mc_log_probs(n(3, 4), n(3, 4).exp(), n(3, 4, 2), num_samples=50, seed=1).flatten().tolist())"
    )
    values = native_core.capabilities() if variable == "HETNET_CPU_CAPABILITY" else ["native", "reference"]
    results = [python("-c", script, folder=tmp_path, **{variable: value}).stdout for value in values]
    first, *others = (torch.tensor([float(x) for x in result.strip("[]\n").split(",")]) for result in results)
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-5, atol=1e-6)
