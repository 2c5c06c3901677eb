"""``python -m hetnet_ext``: what was built, and what runs."""

from __future__ import annotations

import platform

import torch

from . import __version__
from ._library import CPU_CAPABILITIES, cpu_capability


def main() -> None:
    best = CPU_CAPABILITIES[torch.ops.hetnet_ext.best_cpu_capability()]
    rows = {
        "hetnet_ext": __version__,
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "CPU kernels": f"{cpu_capability()} (this CPU runs up to {best}; HETNET_CPU_CAPABILITY overrides)",
        "threads": str(torch.get_num_threads()),
        "CUDA kernels": "not in this build",
    }
    for name, value in rows.items():
        print(f"{name:14}{value}")


if __name__ == "__main__":
    main()
