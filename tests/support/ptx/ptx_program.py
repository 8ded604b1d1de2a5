"""A PTX file's entry point as data, for ptx_machine.py."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
from support.ptx.ptx_arithmetic import TYPES

REGISTERS = {"pred": TYPES["pred"], "b16": TYPES["u16"], "b32": TYPES["u32"], "b64": TYPES["u64"]}
STATEMENT = re.compile(r"(?:@(!?)(%p\d+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")


class Instruction(NamedTuple):
    """One statement; `guard` is the predicate before it, (name, negated)."""

    op: tuple[str, ...]
    operands: tuple[str, ...]
    guard: tuple[str, bool] | None
    text: str


class Kernel:
    """An entry point of a PTX file: its parameters' sizes, the threads of a block, its instructions."""

    def __init__(self, ptx: str) -> None:
        ptx = re.sub(r"//[^\n]*", "", ptx)
        head, body = ptx[ptx.index(".entry") :].split("{", 1)
        found = re.search(r"\.entry\s+(\w+)\s*\((.*?)\)", head, re.DOTALL)
        assert found
        self.name = found[1]
        self.parameters = [TYPES[kind].itemsize for kind in re.findall(r"\.param\s+\.(\w+)", found[2])]
        threads = re.search(r"\.reqntid\s+(\d+)", head)
        assert threads
        self.threads = int(threads[1])
        self.registers: dict[str, np.dtype[Any]] = {}
        self.labels: dict[str, int] = {}
        self.code: list[Instruction] = []
        for line in re.split(r"[;\n]", body.rsplit("}", 1)[0]):
            self._read(line.strip())
        self.leaders = {0, len(self.code), *self.labels.values()}
        self.leaders |= {place + 1 for place, one in enumerate(self.code) if one.op[0] in ("bra", "ret")}

    def _read(self, line: str) -> None:
        if declared := re.match(r"\.reg\s+\.(\w+)\s+(%\w+)<(\d+)>", line):
            kind, name, count = declared.groups()
            self.registers.update({f"{name}{number}": REGISTERS[kind] for number in range(int(count))})
        elif line.endswith(":"):
            self.labels[line[:-1]] = len(self.code)
        elif line and line[0] not in "{}.":
            found = STATEMENT.fullmatch(line)
            assert found, line
            guard = (found[2], found[1] == "!") if found[2] else None
            op = tuple(found[3].split("."))
            self.code.append(Instruction(op, tuple(OPERAND.findall(found[4])), guard, line))


def names(operand: str) -> list[str]:
    """The registers of an operand in braces, or of one."""
    return [name.strip() for name in operand.strip("{} ").split(",")]
