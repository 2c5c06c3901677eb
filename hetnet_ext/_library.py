"""Loads the compiled operators, and explains why when it cannot."""

from __future__ import annotations

import importlib
import os
from importlib.machinery import PathFinder
from pathlib import Path

import torch

#: Instruction sets of the CPU kernels, in the order of the C++ enumeration.
CPU_CAPABILITIES = ("baseline", "avx2", "avx512")

_PACKAGE = Path(__file__).parent


def _load() -> None:
    if PathFinder.find_spec("hetnet_ext._C", [str(_PACKAGE)]) is None:
        if (_PACKAGE.parent / "csrc").is_dir():
            raise ImportError(
                f"hetnet_ext was imported from its source tree ({_PACKAGE.parent}), which holds no compiled library: "
                "run Python from another folder (or with -P) to use the installed package, "
                "or build in place with `pip install -e .`"
            )
        raise ImportError(f"hetnet_ext in {_PACKAGE} holds no compiled library: reinstall it with `pip install .`")
    importlib.import_module("hetnet_ext._C")

    wanted = os.environ.get("HETNET_CPU_CAPABILITY")
    usable = CPU_CAPABILITIES[: torch.ops.hetnet_ext.best_cpu_capability() + 1]
    if wanted is not None and wanted not in usable:
        raise ImportError(f"HETNET_CPU_CAPABILITY: expected one of {', '.join(usable)} on this CPU, got {wanted!r}")


def cpu_capability() -> str:
    """The instruction set that the CPU kernels use in this process: baseline, avx2 or avx512."""
    return CPU_CAPABILITIES[torch.ops.hetnet_ext.cpu_capability()]


def cuda_version() -> str | None:
    """The CUDA toolkit that the CUDA kernels were built with, such as ``"13.0"``; None in a build without them."""
    number = torch.ops.hetnet_ext.cuda_version()
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


_load()
