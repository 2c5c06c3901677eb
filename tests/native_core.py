"""Compiles the numerics core for one instruction set, or the CUDA kernels for the CPU, and imports it."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sysconfig
from functools import cache
from pathlib import Path
from types import ModuleType

import pybind11

ROOT = Path(__file__).resolve().parent.parent

_FLAGS = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma", "-DHETNET_CPU_AVX2"],
    "avx512": [
        "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mfma", "-mprefer-vector-width=512",
        "-DHETNET_CPU_AVX512",
    ],
}  # fmt: skip


def capabilities() -> list[str]:
    """The instruction sets that this machine runs."""
    import torch

    import hetnet_ext  # noqa: F401  (registers the operator)

    names = list(_FLAGS) if platform.machine() == "x86_64" else ["baseline"]
    return names[: torch.ops.hetnet_ext.best_cpu_capability() + 1]


@cache
def build(capability: str, folder: Path) -> ModuleType:
    return compile_module(f"core_{capability}", "core.cpp", tuple(_FLAGS[capability]), folder)


@cache
def build_cuda_emulator(folder: Path) -> ModuleType:
    """The CUDA kernels, for the CPU."""
    flags = (*cuda_emulator_flags(), "-Wno-unknown-pragmas")
    return compile_module("cuda_emulator", "cuda.cpp", flags, folder)


def cuda_emulator_flags() -> list[str]:
    # The kernels fuse multiplications and additions: without the instruction, a library call does.
    has_fma = platform.machine() == "x86_64" and "avx2" in capabilities()
    emulator = f"-I{ROOT / 'tests' / 'emulator'}"
    return [*(["-mfma"] if has_fma else []), "-DHETNET_FMA", "-DHETNET_RECIPROCAL_ROOT=::rsqrtf", emulator]


def compile_module(name: str, source: str, flags: tuple[str, ...], folder: Path) -> ModuleType:
    """Compiles a file of tests/native against the package's sources."""
    target = folder / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
    includes = [f"-I{ROOT / 'csrc'}", f"-I{sysconfig.get_path('include')}", f"-I{pybind11.get_include()}"]
    command = [
        compiler, "-std=c++17", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-psabi",
        "-ffp-contract=off", "-fvisibility=hidden", *flags, f"-DHETNET_TEST_MODULE={name}", *includes,
        str(ROOT / "tests" / "native" / source), "-o", str(target),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    spec = importlib.util.spec_from_file_location(name, target)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
