"""What bounds the CUDA kernels, read off their compiled code: no GPU is needed.

``python benchmarks/cuda_bound.py`` compiles the single-precision kernels for each of ``--arch`` with nvcc, and
fails where one spills registers or uses local memory: the launch bounds beside each kernel are its budget of
registers, which the compiler keeps, by spilling if it must. For each kernel it prints registers, the warps that fit
onto a processor by them, and the instructions of one sample of one class (an "item") of a diagonal head: with the
number of instructions that a GPU issues, that bounds the items a second. Instructions are counted with ``nvdisasm``, of
the toolkit or of the package ``nvidia-cuda-nvdisasm``; without it, only the check is made.

The bound knows nothing of latencies, barriers or memory: no kernel reaches it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "csrc" / "cuda" / "kernels_float.cu"
ITEMS_PER_STEP = 16  # of a thread: four samples of four classes
REGISTERS = 65536  # of a processor, of any architecture so far
LANES = 32

# Cycles that an instruction of a warp keeps a pipe of a quarter of a processor busy, by the pipe.
CYCLES = {"issue": 1, "FMA": 1, "integer multiply": 2, "ALU": 2, "special function": 8, "memory": 4}
PIPES = {
    "integer multiply": {"IMAD", "IMUL", "IDP"},
    "FMA": {"FFMA", "FADD", "FMUL"},
    "special function": {"MUFU", "I2F", "F2I", "F2F", "POPC", "FLO", "FRND"},
    "memory": {"LDS", "STS", "LDG", "STG", "LDL", "STL", "LD", "ST", "SHFL", "LDC"},
    "control": {"BRA", "BAR", "EXIT", "BSSY", "BSYNC", "WARPSYNC", "CALL", "RET", "NOP"},
}
COUNTED = ("FMA", "integer multiply", "ALU", "special function", "memory", "control", "uniform")


class Resources(NamedTuple):
    """Of a kernel, as ptxas reports them."""

    registers: int
    stack: int
    spills: int


def compile_kernels(nvcc: str, arch: str, target: Path, *flags: str) -> str:
    """Returns what ptxas says of them."""
    command = [
        nvcc, "-std=c++17", "-O3", "-fmad=false", f"-arch=sm_{arch}", "-cubin", "-Xptxas", "-v", *flags, str(SOURCE),
        "-o", str(target),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(result.stderr)
    return result.stderr


def resources(report: str) -> dict[str, Resources]:
    found = {}
    for part in report.split("Compiling entry function '")[1:]:
        numbers = [
            int(re.search(pattern, part)[1])  # type: ignore[index]
            for pattern in (r"Used (\d+) registers", r"(\d+) bytes stack frame", r"(\d+) bytes spill stores")
        ]
        found[part.split("'")[0]] = Resources(*numbers)
    return found


def readable(names: list[str]) -> dict[str, str]:
    lines = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return {
        name: re.sub(r"\(.*|^void ", "", re.sub(r"\(hetnet::cuda::(\w+)\)", r"\1 ", line).replace("hetnet::cuda::", ""))
        for name, line in zip(names, lines.splitlines(), strict=True)
    }


def warps(registers: int) -> int:
    """That fit onto a processor, four blocks of registers of 256 each at a time."""
    per_warp = (registers * LANES + 255) // 256 * 256
    return REGISTERS // per_warp // 4 * 4


def pipe(instruction: str) -> str:
    name = instruction.split(".")[0]
    found = next((pipe for pipe, names in PIPES.items() if name in names), None)
    return found or ("uniform" if name.startswith(("U", "R2UR", "S2UR")) else "ALU")


def disassemble(nvdisasm: str, cubin: Path) -> dict[str, list[tuple[str, str]]]:
    """The code of each kernel: labels, as ("", label), and instructions with their operands."""
    text = subprocess.run([nvdisasm, "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
    code: dict[str, list[tuple[str, str]]] = {}
    for line in text.splitlines():
        if section := re.match(r"\s*\.section\s+\.text\.(\S+?),", line):
            lines = code.setdefault(section[1], [])
        elif not code:
            continue
        elif label := re.match(r"\s*(\.L\w+):", line):
            lines.append(("", label[1]))
        elif instruction := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*?);", line):
            lines.append((instruction[1], instruction[2]))
    return code


def step_instructions(code: list[tuple[str, str]]) -> list[str] | None:
    """Those of a thread's step: the smallest loop that draws for all of its samples, without the loops in it (over
    the factors, of which a diagonal head has none, and over a team's warps). None where there is no such loop."""
    labels = {operands: i for i, (name, operands) in enumerate(code) if not name}
    loops = []
    for i, (name, operands) in enumerate(code):
        target = re.search(r"\((\.L\w+)\)", operands) if name.startswith("BRA") else None
        if target and labels.get(target[1], i) < i:
            loops.append((labels[target[1]], i))
    # Four calls of the generator have twenty wide products each, but those of the first rounds may be shared.
    drawing = [
        (begin, end)
        for begin, end in loops
        if sum(name.startswith(("IMAD.WIDE", "IMAD.HI")) for name, _ in code[begin : end + 1]) >= 60
    ]
    if not drawing:
        return None
    begin, end = min(drawing, key=lambda loop: loop[1] - loop[0])
    nested = {i for b, e in loops if begin <= b and e <= end and (b, e) != (begin, end) for i in range(b, e + 1)}
    return [code[i][0] for i in range(begin, end + 1) if code[i][0] and i not in nested]


def bound(instructions: list[str], processors: int, gigahertz: float) -> tuple[float, str]:
    """Items a second, in 10^9, and the pipe that bounds them."""
    count = Counter(pipe(name) for name in instructions)
    count["FMA"] += count["integer multiply"]  # which the same units do
    count["issue"] = len(instructions)
    cycles = {name: CYCLES[name] * count[name] for name in CYCLES}
    slowest = max(cycles, key=lambda name: cycles[name])
    return processors * 4 * LANES * ITEMS_PER_STEP * gigahertz / cycles[slowest], slowest


def find_nvdisasm(nvcc: str) -> str | None:
    package = Path(sysconfig.get_path("purelib")) / "nvidia"
    candidates = [Path(nvcc).with_name("nvdisasm"), *package.glob("*/bin/nvdisasm")]
    return shutil.which("nvdisasm") or next((str(path) for path in candidates if path.exists()), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", nargs="+", default=["90", "80"], help="compute capabilities, without the dot")
    parser.add_argument("--processors", type=int, default=132, help="of the GPU: those of an H100 SXM or H200")
    parser.add_argument("--gigahertz", type=float, default=1.755)
    arguments = parser.parse_args()
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise SystemExit("nvcc is not on the path")
    nvdisasm = find_nvdisasm(nvcc)

    wrong = []
    for arch in arguments.arch:
        with tempfile.TemporaryDirectory() as folder:
            cubin = Path(folder) / "kernels.cubin"
            found = resources(compile_kernels(nvcc, arch, cubin))
            # What is rarely run (classes whose probabilities underflow) is left out of the count.
            code = {}
            if nvdisasm:
                compile_kernels(nvcc, arch, cubin, "-DHETNET_USUAL_PATH_ONLY")
                code = disassemble(nvdisasm, cubin)
        print(f"\nsm_{arch}, bounds at {arguments.processors} processors and {arguments.gigahertz} GHz\n")
        columns = [
            "kernel",
            "registers",
            "warps a processor",
            "instructions an item",
            *COUNTED,
            "G items/s",
            "bound by",
        ]
        print(f"| {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) - 2)}---|")
        names = readable(list(found))
        for kernel, of_kernel in sorted(found.items(), key=lambda item: names[item[0]]):
            if of_kernel.stack or of_kernel.spills:
                wrong.append(f"sm_{arch} {names[kernel]}: {of_kernel.stack} bytes of stack, {of_kernel.spills} spilled")
            draws = ", " in names[kernel]  # as many samples a step as its second parameter says
            instructions = step_instructions(code.get(kernel, [])) if draws else None
            row = [names[kernel], of_kernel.registers, warps(of_kernel.registers), *[""] * (len(columns) - 3)]
            if instructions:
                items, limit = bound(instructions, arguments.processors, arguments.gigahertz)
                count = Counter(map(pipe, instructions))
                per_item = (
                    number / ITEMS_PER_STEP for number in (len(instructions), *(count[name] for name in COUNTED))
                )
                row[3:] = *(f"{number:.1f}" for number in per_item), f"{items:.0f}", limit
            print("| " + " | ".join(map(str, row)) + " |")
    if wrong:
        sys.exit("\nlocal memory is used:\n" + "\n".join(wrong))


if __name__ == "__main__":
    main()
