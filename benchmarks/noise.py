"""How fast one thread draws normals: the limit of every kernel that draws them."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from measure import interleaved

import hetnet_ext

FLAGS = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma", "-DHETNET_CPU_AVX2"],
    "avx512": [
        "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mfma", "-mprefer-vector-width=512",
        "-DHETNET_CPU_AVX512",
    ],
}  # fmt: skip
DIMENSIONS, VECTORS = 200, 2000


def nanoseconds_a_normal(rounds: int) -> float | None:
    """From the kernels' own source, compiled for the instruction set in use; None without a compiler."""
    compiler = shutil.which("c++")
    if compiler is None:
        return None
    here = Path(__file__).resolve().parent
    flags = FLAGS[hetnet_ext.cpu_capability()] if platform.machine() == "x86_64" else []
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "noise.so"
        command = [
            compiler, "-std=c++17", "-O3", "-shared", "-fPIC", "-Wno-psabi", "-ffp-contract=off", *flags,
            f"-I{here.parent / 'csrc'}", str(here / "noise.cpp"), "-o", str(target),
        ]  # fmt: skip
        subprocess.run(command, check=True)
        draw = ctypes.CDLL(str(target)).draw
    draw.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)]
    draw.restype = ctypes.c_float
    lanes = ctypes.c_int64()
    seconds = interleaved({"noise": lambda: draw(DIMENSIONS, VECTORS, ctypes.byref(lanes))}, rounds)["noise"]
    return 1e9 * seconds.median / (DIMENSIONS * VECTORS * lanes.value)
