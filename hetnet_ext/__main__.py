"""``python -m hetnet_ext``: what was built, and what runs."""

from __future__ import annotations

import platform

import torch

from . import __version__
from ._library import CPU_CAPABILITIES, cpu_capability, cuda_version


def _cuda_kernels() -> str:
    version = cuda_version()
    if version is None:
        return "not in this build (FORCE_CUDA=1 builds them)"
    if not torch.cuda.is_available():
        why = "torch sees no GPU" if torch.version.cuda else "torch has no CUDA"
        return f"built with CUDA {version}, not in use: {why}"
    return f"built with CUDA {version}, on {torch.cuda.get_device_name()}"


def main() -> None:
    best = CPU_CAPABILITIES[torch.ops.hetnet_ext.best_cpu_capability()]
    rows = {
        "hetnet_ext": __version__,
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "CPU kernels": f"{cpu_capability()} (this CPU runs up to {best}; HETNET_CPU_CAPABILITY overrides)",
        "threads": str(torch.get_num_threads()),
        "CUDA kernels": _cuda_kernels(),
    }
    for name, value in rows.items():
        print(f"{name:14}{value}")


if __name__ == "__main__":
    main()
