"""How fast one thread draws normals, which bounds every kernel, and where the loss spends its time.

Both are measured in the kernels' own source, compiled here for the instruction set in use.
"""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from jobs import Job

import hetnet_ext

FLAGS = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma", "-DHETNET_CPU_AVX2"],
    "avx512": [
        "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mfma", "-mprefer-vector-width=512",
        "-DHETNET_CPU_AVX512",
    ],
}  # fmt: skip


@cache
def _library() -> ctypes.CDLL | None:
    """None without a compiler."""
    compiler = shutil.which("c++")
    if compiler is None:
        return None
    here = Path(__file__).resolve().parent
    flags = FLAGS[hetnet_ext.cpu_capability()] if platform.machine() == "x86_64" else []
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "stages.so"
        command = [
            compiler, "-std=c++17", "-O3", "-shared", "-fPIC", "-Wno-psabi", "-ffp-contract=off", *flags,
            f"-I{here.parent / 'csrc'}", str(here / "stages.cpp"), "-o", str(target),
        ]  # fmt: skip
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(target))


def nanoseconds_a_normal() -> float | None:
    library = _library()
    if library is None:
        return None
    library.seconds_a_normal.restype = ctypes.c_double
    return 1e9 * library.seconds_a_normal()


def shares(job: Job) -> dict[str, float] | None:
    """Of the loss with its gradients on one thread."""
    library = _library()
    if library is None:
        return None
    out = (ctypes.c_double * 5)()
    sizes = [ctypes.c_int64(size) for size in (job.rows, job.classes, job.factors, job.samples)]
    library.time_stages(*sizes, ctypes.c_bool(job.form == "PE"), out)
    whole, draws, softmax, gradient, noise = out
    result = {
        "noise": noise / whole,
        "covariance": (draws - noise) / whole,
        "softmax": softmax / whole,
        "gradient sums": gradient / whole,
    }
    return {**result, "rest": 1 - sum(result.values())}
