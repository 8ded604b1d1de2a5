"""Parses the entry point of a PTX file, for ptx_machine.py."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
from support.ptx.ptx_arithmetic import TYPES

REGISTERS = {"pred": TYPES["pred"], "b16": TYPES["u16"], "b32": TYPES["u32"], "b64": TYPES["u64"]}
STATEMENT = re.compile(r"(?:@(!?)(%p\d+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")


class Instruction(NamedTuple):
    """One statement. `guard` is the predicate before it, (name, negated); None if there is none."""

    op: tuple[str, ...]
    operands: tuple[str, ...]
    guard: tuple[str, bool] | None
    text: str


class Kernel:
    """The entry point of a PTX file: sizes of parameters, threads of a block, registers, instructions."""

    def __init__(self, ptx: str) -> None:
        ptx = re.sub(r"//[^\n]*", "", ptx)
        head, body = ptx[ptx.index(".entry") :].split("{", 1)
        entry = re.search(r"\.entry\s+(\w+)\s*\((.*?)\)", head, re.DOTALL)
        assert entry
        self.name = entry[1]
        self.parameters = [TYPES[kind].itemsize for kind in re.findall(r"\.param\s+\.(\w+)", entry[2])]
        threads = re.search(r"\.reqntid\s+(\d+)", head)
        assert threads
        self.threads = int(threads[1])
        self.registers: dict[str, np.dtype[Any]] = {}
        self.labels: dict[str, int] = {}
        self.code: list[Instruction] = []
        for line in re.split(r"[;\n]", body.rsplit("}", 1)[0]):
            self._read(line.strip())
        # The first instructions of basic blocks, at which threads may join others.
        self.leaders = {0, len(self.code), *self.labels.values()}
        ends = (index for index, instruction in enumerate(self.code, 1) if instruction.op[0] in ("bra", "ret"))
        self.leaders.update(ends)

    def _read(self, line: str) -> None:
        if declared := re.match(r"\.reg\s+\.(\w+)\s+(%\w+)<(\d+)>", line):
            kind, name, count = declared.groups()
            self.registers.update({f"{name}{number}": REGISTERS[kind] for number in range(int(count))})
        elif line.endswith(":"):
            self.labels[line[:-1]] = len(self.code)
        elif line and line[0] not in "{}.":
            statement = STATEMENT.fullmatch(line)
            assert statement, line
            negation, predicate, op, operands = statement.groups()
            guard = (predicate, negation == "!") if predicate else None
            self.code.append(Instruction(tuple(op.split(".")), tuple(OPERAND.findall(operands)), guard, line))


def names(operand: str) -> list[str]:
    """Returns the registers of an operand: of one in braces several, otherwise the operand itself."""
    return [name.strip() for name in operand.strip("{} ").split(",")]
