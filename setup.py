"""Builds the operator library; everything else is in pyproject.toml.

CUDA kernels are built where ``FORCE_CUDA=1`` or, without it, where torch sees a GPU and nvcc is found;
``FORCE_CUDA=0`` leaves them out. ``TORCH_CUDA_ARCH_LIST`` chooses the architectures, as for every torch
extension; without it they are those of the torch that is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import torch
from setuptools import Extension, setup
from torch.utils import cpp_extension

# The oldest torch whose stable ABI the library needs: one build serves it and every later one.
TORCH_MINIMUM = (2, 10)


def fail(message: str) -> None:
    raise SystemExit(f"hetnet_ext: {message}")


def find_nvcc() -> Path | None:
    """``$CUDA_HOME/bin/nvcc``, or the one on the path."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    found = shutil.which("nvcc", path=str(Path(home) / "bin") if home else None)
    return None if found is None else Path(found)


def nvcc_version(nvcc: Path) -> tuple[int, int]:
    text = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    release = re.search(r"release (\d+)\.(\d+)", text)
    if release is None:
        fail(f"cannot read the version of {nvcc} from its --version")
    return int(release[1]), int(release[2])


def toolkit(nvcc: Path) -> Path:
    """The folder of nvcc's libraries and headers, which it names itself: nvcc may be a link or a script."""
    text = subprocess.run([nvcc, "--dryrun", "-c", "x.cu"], check=False, capture_output=True, text=True).stderr
    top = re.search(r"^#\$ TOP=(.*)$", text, re.MULTILINE)
    return Path(top[1]).resolve() if top else nvcc.resolve().parent.parent


def wants_cuda() -> bool:
    forced = os.environ.get("FORCE_CUDA")
    if forced not in (None, "", "0", "1"):
        fail(f"FORCE_CUDA: expected 0 or 1, got {forced!r}")
    if forced:
        return forced == "1"
    return torch.version.cuda is not None and torch.cuda.is_available() and find_nvcc() is not None


def architectures() -> list[str]:
    """As ``TORCH_CUDA_ARCH_LIST`` spells them: 8.0 9.0+PTX."""
    listed = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if listed is not None:
        found = re.split(r"[ ;,]+", listed.strip(" ;,"))
        found = [name for name in found if name]
    else:
        # Those that torch itself was built for, which needs no GPU to be asked; PTX for later ones.
        numbers = sorted({int(number) for number in re.findall(r"sm_(\d+)", torch._C._cuda_getArchFlags() or "")})
        found = [f"{number // 10}.{number % 10}" for number in numbers]
        if found:
            found[-1] += "+PTX"
    if not found:
        fail("no CUDA architecture to build for: set TORCH_CUDA_ARCH_LIST, to 9.0 for example")
    return found


def prepare_cuda() -> tuple[Path, tuple[int, int]]:
    """Checks what a CUDA build needs, before anything is compiled. Returns the toolkit and its version."""
    if torch.version.cuda is None:
        fail(f"a CUDA build needs a torch with CUDA, found {torch.__version__}: install one, or unset FORCE_CUDA")
    nvcc = find_nvcc()
    if nvcc is None:
        fail("a CUDA build needs nvcc, which is neither in $CUDA_HOME/bin nor on the path: set CUDA_HOME")
    version = nvcc_version(nvcc)
    if version[0] != int(torch.version.cuda.split(".")[0]):
        fail(
            f"nvcc is of CUDA {version[0]}.{version[1]}, torch of CUDA {torch.version.cuda}: "
            "set CUDA_HOME to a toolkit of the same major version"
        )
    home = toolkit(nvcc)
    os.environ["TORCH_CUDA_ARCH_LIST"] = " ".join(architectures())
    cpp_extension.CUDA_HOME = str(home)
    return home, version


found = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
if found < TORCH_MINIMUM:
    fail(f"a build needs torch >= {'.'.join(map(str, TORCH_MINIMUM))}, found {torch.__version__}: pip install -U torch")

sources = [
    "csrc/ops.cpp",
    "csrc/cpu/dispatch.cpp",
    "csrc/cpu/scratch.cpp",
    "csrc/cpu/kernels_baseline.cpp",
    "csrc/cpu/kernels_avx2.cpp",
    "csrc/cpu/kernels_avx512.cpp",
]
macros = [
    ("TORCH_TARGET_VERSION", f"0x{TORCH_MINIMUM[0]:02x}{TORCH_MINIMUM[1]:02x}000000000000"),
    ("Py_LIMITED_API", "0x030A0000"),
]
cxx_flags = [
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
]
nvcc_flags = ["-std=c++17", "-O3", "-fmad=false", "-Xcompiler", "-fvisibility=hidden"]

# Only the stable ABI's library: linking the others would tie the build to one torch, and a CUDA build to
# a torch with CUDA. The CUDA runtime is in the library itself.
if wants_cuda():
    home, version = prepare_cuda()
    library: Extension = cpp_extension.CUDAExtension(
        "hetnet_ext._C",
        [*sources, "csrc/cuda/register.cpp", "csrc/cuda/kernels_float.cu", "csrc/cuda/kernels_double.cu"],
        define_macros=[
            *macros,
            ("USE_CUDA", None),
            ("HETNET_CUDA_VERSION", str(1000 * version[0] + 10 * version[1])),
        ],
        extra_compile_args={"cxx": cxx_flags, "nvcc": nvcc_flags},
        extra_link_args=["-l:libcudart_static.a", "-ldl", "-lrt", "-lpthread", "-Wl,--exclude-libs,ALL"],
        library_dirs=[str(home / "lib64"), str(home / "lib")],
        py_limited_api=True,
    )
else:
    library = cpp_extension.CppExtension(
        "hetnet_ext._C", sources, define_macros=macros, extra_compile_args=cxx_flags, py_limited_api=True
    )
library.libraries = ["torch_cpu"]

setup(
    ext_modules=[library],
    cmdclass={"build_ext": cpp_extension.BuildExtension},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
