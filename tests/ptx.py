"""Translates the PTX that nvcc makes of kernels to C++, which the emulator runs in the place of their source.

A register is a word of 64 bits, and each instruction says what its bits stand for, as in PTX. What the instructions do
is in ``emulator/ptx.h``. Those that nvcc makes of our kernels are known; others raise.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TYPES = {
    "pred": "bool", "f32": "float", "f64": "double",
    **{f"{kind}{bits}": f"{prefix}int{bits}_t" for bits in (8, 16, 32, 64) for kind, prefix in
       (("b", "u"), ("u", "u"), ("s", ""))},
}  # fmt: skip
WIDE = {"u32": "u64", "s32": "s64"}
SPECIAL = {
    f"%{ptx}.{axis}": f"word({cuda}.{axis})"
    for ptx, cuda in (("tid", "threadIdx"), ("ntid", "blockDim"), ("ctaid", "blockIdx"), ("nctaid", "gridDim"))
    for axis in "xyz"
}
OPERATORS = {"eq": "==", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
OPPOSITES = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
SAME_TYPE = {"add", "sub", "min", "max", "neg", "and", "or", "xor", "not", "div", "rem", "fma", "ex2", "rcp", "rsqrt",
             "sqrt"}  # fmt: skip


def comparison(name: str, x: str, y: str) -> str:
    """None holds for a NaN, but those that end in u and ``nan``."""
    if name in OPERATORS:
        return f"({x} {OPERATORS[name]} {y})"
    if name == "ne":
        return f"({x} < {y} || {y} < {x})"
    if name in ("num", "nan"):
        return f"({x} == {x} && {y} == {y})" if name == "num" else f"({x} != {x} || {y} != {y})"
    return "!" + comparison(OPPOSITES[name.removesuffix("u")], x, y)


class Kernel:
    """An entry of a module: its instructions, one a line of C++."""

    def __init__(self, name: str, parameters: str, body: str, shared: dict[str, int]) -> None:
        self.name = name
        # (type, name, bytes of a structure)
        self.parameters = re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+(\w+)(?:\[(\d+)\])?", parameters)
        self.shared = shared
        self.registers: dict[str, int] = {}  # how many of each kind
        body = re.sub(r"\{\s*\.reg[^{}]*\}", self._rename_scope, body)
        body = re.sub(r"(?m)^\s*\.(reg|shared|loc|pragma)\b.*$", "", body)
        statements = re.findall(r"\$?\w+:|[^\s;](?:[^;{}]|\{[^{}]*\})*;", body)
        self.lines = [self._statement(" ".join(text.split()), i) for i, text in enumerate(statements)]

    def _rename_scope(self, scope: re.Match[str]) -> str:
        """Inlined assembly has registers of its own, which may be named like others."""
        text = scope[0].strip("{}")
        for name in re.findall(r"\.reg\s+\.\w+\s+(%\w+)\s*;", text):
            text = re.sub(re.escape(name) + r"\b", f"%own{self.registers.setdefault('own', 0)}", text)
            self.registers["own"] += 1
        return re.sub(r"\.reg[^;]*;", "", text)

    def word(self, operand: str) -> str:
        """The bits of an operand."""
        if operand in SPECIAL:
            return SPECIAL[operand]
        if register := re.fullmatch(r"%([a-z]+)(\d+)", operand):
            kind, number = register[1], int(register[2])
            self.registers[kind] = max(self.registers.get(kind, 0), number + 1)
            return f"{kind}[{number}]"
        if number := re.fullmatch(r"0[fd]([0-9A-Fa-f]+)", operand):
            return f"0x{number[1]}ull"
        if operand in self.shared:
            return f"{self.shared[operand]}ull"
        if any(operand == name for _, name, _ in self.parameters):
            return f"word(&{operand})"
        return f"uint64_t({int(operand, 0)}ll)"

    def value(self, operand: str, kind: str) -> str:
        return f"as<{TYPES[kind]}>({self.word(operand)})"

    def store(self, operand: str, value: str) -> str:
        return f"{self.word(operand)} = word({value});"

    def address(self, operand: str, space: str | None) -> str:
        base, _, offset = operand.strip("[] ").partition("+")
        where = self.word(base.strip())
        if space == "shared":
            where = f"shared_address({where})"
        return f"({where} + ({int(offset or '0')}))"

    def _statement(self, text: str, place: int) -> str:
        if text.endswith(":"):
            return text.replace("$", "") + ";"
        match = re.fullmatch(r"(?:@(!?)(%\w+) )?([\w.:]+) ?(.*);", text)
        if match is None:
            raise ValueError(f"not understood: {text}")
        negated, predicate, opcode, rest = match.groups()
        operands = [x.strip() for x in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", rest)]
        line = self.instruction(opcode, operands, f'{{"ptx", {place}}}')
        if predicate:
            return f"if ({negated}as<bool>({self.word(predicate)})) {{ {line} }}"
        return line

    def instruction(self, opcode: str, operands: list[str], place: str) -> str:
        name, *options = opcode.split(".")
        kind = options[-1] if options else ""
        value, first = self.value, operands[0] if operands else ""
        if name == "bra":
            return f"goto {first.replace('$', '')};"
        if name in ("ret", "exit"):
            return "return;"
        if name in ("ld", "st"):
            space = next((x for x in options if x in ("global", "shared", "param")), None)
            registers, address = operands if name == "ld" else operands[::-1]
            address = self.address(address, space)
            lines = []
            for i, register in enumerate(registers.strip("{} ").split(",")):
                at = f"{address} + {i} * sizeof({TYPES[kind]})"
                if name == "ld":
                    lines.append(self.store(register.strip(), f"load<{TYPES[kind]}>({at})"))
                else:
                    lines.append(f"store({at}, {value(register.strip(), kind)});")
            return " ".join(lines)
        if name == "mov":
            return f"{self.word(first)} = {self.word(operands[1])};"
        if name == "cvta":
            word = self.word(operands[1])
            return f"{self.word(first)} = {f'shared_address({word})' if options[0] == 'shared' else word};"
        if name == "cvt":
            return self.store(first, f"static_cast<{TYPES[options[-2]]}>({value(operands[1], kind)})")
        if name == "setp":
            holds = comparison(options[0], value(operands[1], kind), value(operands[2], kind))
            if len(operands) == 4:  # and, or, xor
                holds = f"bit_{options[1]}(bool({holds}), {value(operands[3], 'pred')})"
            return self.store(first, holds)
        if name == "selp":
            yes, no = map(self.word, operands[1:3])
            return f"{self.word(first)} = {value(operands[3], 'pred')} ? {yes} : {no};"
        if name in ("shl", "shr"):
            return self.store(first, f"{name}({value(operands[1], kind)}, {value(operands[2], 'u32')})")
        if name in ("mul", "mad") and "wide" in options:
            x, y = (f"{TYPES[WIDE[kind]]}({value(x, kind)})" for x in operands[1:3])
            return self.store(first, f"mul({x}, {y})")
        if name in ("mul", "mad") and ("lo" in options or kind in ("f32", "f64")):
            product = f"mul({value(operands[1], kind)}, {value(operands[2], kind)})"
            return self.store(first, product if name == "mul" else f"add({product}, {value(operands[3], kind)})")
        if opcode == "bar.warp.sync":
            return f"__syncwarp({value(first, 'u32')}, {place});"
        if opcode == "bar.red.or.pred":
            return self.store(first, f"__syncthreads_or({value(operands[2], 'pred')}, {place}) != 0")
        if opcode == "bar.sync":
            return f"__syncthreads({place});"
        if opcode == "redux.sync.or.b32":
            return self.store(first, f"reduce_or({value(operands[2], 'u32')}, {value(operands[1], 'u32')}, {place})")
        if name == "shfl" and options[1] in ("bfly", "idx"):
            shuffle = {"bfly": "__shfl_xor_sync", "idx": "__shfl_sync"}[options[1]]
            arguments = ", ".join(value(operands[i], "u32") for i in (4, 1, 2))
            return self.store(
                first.split("|")[0], f"{shuffle}({arguments}, shuffle_width({value(operands[3], 'u32')}), {place})"
            )
        if name in SAME_TYPE:
            name = f"bit_{name}" if name in ("and", "or", "xor", "not") else name
            variant = "_approx" if "approx" in options else "_nan" if "NaN" in options else ""
            return self.store(first, f"{name}{variant}({', '.join(value(x, kind) for x in operands[1:])})")
        raise ValueError(f"no such instruction known: {opcode} {', '.join(operands)}")

    def start(self, static_bytes: int) -> str:
        """Runs the kernel if it is the one of this name."""
        types = [f"Structure<{size}>" if size else TYPES[kind] for kind, _, size in self.parameters]
        arguments = "".join(f", *static_cast<{kind}*>(parameters[{i}])" for i, kind in enumerate(types))
        call = f"cuemu::run({self.name}, grid, block, shared_bytes + {static_bytes}{arguments})"
        return f'  if (name == "{self.name}") {{\n    {call};\n    return true;\n  }}\n'

    def cpp(self) -> str:
        parameters = ", ".join(
            f"{f'Structure<{size}>' if size else TYPES[kind]} {name}" for kind, name, size in self.parameters
        )
        registers = "".join(f"  uint64_t {kind}[{count}];\n" for kind, count in sorted(self.registers.items()))
        body = "\n  ".join(self.lines)
        return f"void {self.name}({parameters}) {{\n{registers}  {body}\n}}\n"


def translate(module: str) -> str:
    """C++ for all entries of a PTX module, and ``run``, which starts one by its name."""
    module = re.sub(r"//.*", "", module)
    shared, size = {}, 0
    for name, count in re.findall(r"(?<!\.extern )\.shared\s+\.align\s+\d+\s+\.b8\s+(\w+)\[(\d+)\]", module):
        shared[name] = size
        size += -(-int(count) // 16) * 16
    for name in re.findall(r"\.extern\s+\.shared\s+\.align\s+\d+\s+\.b8\s+(\w+)\[\]", module):
        shared[name] = size
    entries = re.findall(r"\.entry\s+(\w+)\s*\((.*?)\)[^{]*\{(.*?)\n\}", module, re.DOTALL)
    kernels = [Kernel(name, parameters, body, shared) for name, parameters, body in entries]
    starts = "".join(kernel.start(size) for kernel in kernels)
    return (
        '#include "ptx.h"\n\nnamespace ptx {\n\n'
        + "\n".join(kernel.cpp() for kernel in kernels)
        + "\nbool run(const std::string& name, dim3 grid, dim3 block, std::size_t shared_bytes, void** parameters) {\n"
        + starts
        + "  return false;\n}\n\n}  // namespace ptx\n"
    )


if __name__ == "__main__":
    sys.stdout.write(translate(Path(sys.argv[1]).read_text()))
