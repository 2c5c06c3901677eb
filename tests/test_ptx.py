"""What nvcc makes of the CUDA kernels: its PTX, run by the emulator, gives the bits of the kernels' source.

So the code that only nvcc compiles (inlined assembly, say) is tested without a GPU. It takes nvcc and minutes, and is
asked for with HETNET_PTX_TESTS=1.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from types import ModuleType

import native_core
import ptx
import pytest
import torch
from emulated_ops import EmulatedOps
from heads import COVARIANCES, random_head
from test_cuda_kernels import everything

import hetnet_ext

pytestmark = pytest.mark.skipif(
    os.environ.get("HETNET_PTX_TESTS") != "1" or shutil.which("nvcc") is None, reason="HETNET_PTX_TESTS=1, with nvcc"
)


@pytest.fixture(scope="module")
def replay(native_folder) -> ModuleType:
    text, code = native_folder / "kernels.ptx", native_folder / "kernels_ptx.h"
    source = native_core.ROOT / "csrc" / "cuda" / "kernels_float.cu"
    flags = ["-std=c++17", "-O3", "-fmad=false", "-arch=compute_80"]  # as setup.py has them
    subprocess.run(["nvcc", *flags, "-ptx", str(source), "-o", str(text)], check=True)
    code.write_text(ptx.translate(text.read_text()))
    flags = [*native_core.cuda_emulator_flags(), "-O0", "-w", "-fvisibility=default", f'-DHETNET_PTX="{code}"']
    return native_core.compile_module("cuda_ptx", "cuda_ptx.cpp", tuple(flags), native_folder)


# One and several threads, warps and tiles a sample, sums of the factor's gradient of one and several teams, slices.
@pytest.mark.parametrize(
    ("rows", "classes", "factors", "samples"),
    [(9, 10, 10, 4), (3, 10, 10, 70), (2, 101, 15, 9), (3, 40, 50, 60), (2, 140, 3, 150), (2, 1100, 3, 6)],
)
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_bits_are_those_of_the_source(
    replay, cuda_emulator, monkeypatch, covariance, rows, classes, factors, samples
):
    head = random_head(covariance, rows, classes, factors, dtype=torch.float32)
    with torch.no_grad():
        head["loc"][0, : classes // 2] -= 120  # the probabilities underflow
        head["loc"][-1, 1] = -math.inf
    results = []
    for kernels in (cuda_emulator, replay):
        monkeypatch.setattr(hetnet_ext.ops, "kernels", EmulatedOps(kernels))
        results.append(everything(head, samples, "mean"))
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value, rtol=0, atol=0, msg=lambda m, n=name: f"{n}: {m}")
