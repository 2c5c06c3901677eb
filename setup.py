"""Builds the operator library; everything else is in pyproject.toml."""

from __future__ import annotations

import re

import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

# The oldest torch whose stable ABI the library needs: one build serves it and every later one.
TORCH_MINIMUM = (2, 10)

found = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
if found < TORCH_MINIMUM:
    raise SystemExit(
        f"hetnet_ext needs torch >= {'.'.join(map(str, TORCH_MINIMUM))} to build, found {torch.__version__}: "
        "pip install -U torch"
    )

target_version = f"0x{TORCH_MINIMUM[0]:02x}{TORCH_MINIMUM[1]:02x}000000000000"

library = CppExtension(
    "hetnet_ext._C",
    [
        "csrc/ops.cpp",
        "csrc/cpu/dispatch.cpp",
        "csrc/cpu/scratch.cpp",
        "csrc/cpu/kernels_baseline.cpp",
        "csrc/cpu/kernels_avx2.cpp",
        "csrc/cpu/kernels_avx512.cpp",
    ],
    define_macros=[("TORCH_TARGET_VERSION", target_version), ("Py_LIMITED_API", "0x030A0000")],
    extra_compile_args=[
        "-std=c++17",
        "-O3",
        "-g0",
        "-Wall",
        "-Wextra",
        # Every fused multiply-add is written out, so that each instruction set rounds alike.
        "-ffp-contract=off",
        "-fvisibility=hidden",
        # Vectors are passed between inlined functions only: their calling convention is moot.
        "-Wno-psabi",
    ],
    py_limited_api=True,
)
# Only the stable ABI's library: linking the others would tie the build to one torch.
library.libraries = ["torch_cpu"]

setup(
    ext_modules=[library],
    cmdclass={"build_ext": BuildExtension},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
