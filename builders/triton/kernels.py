"""A Triton kernel as data: where its function stands, for which types and constants it is compiled ahead of time."""

from __future__ import annotations

import collections.abc  # named in full: the reference looks these types up without this module
import json
from collections.abc import Iterable
from typing import NamedTuple

from opforge.errors import BuilderError

ALIGNMENT = 16
SCALARS = {"i1": "?7x", "i32": "i4x", "i64": "q", "fp32": "f4x", "fp64": "d"}
"""Scalar type -> how `struct` packs it into a slot of eight bytes."""
POINTEES = ("i1", "i8", "u8", "i16", "i32", "i64", "fp16", "bf16", "fp32", "fp64", "fp8e4nv", "fp8e5")


class Kernel(NamedTuple):
    """One signature of one Triton function.

    `arguments` names the function's run-time arguments in its own order, each with a type in Triton's words, such as
    "*bf16", "i32", "fp32"; ":16" after it promises that the value (of a pointer: the address) is divisible by 16, which
    is what wide loads need, and which every launch checks.
    """

    name: str
    """What a launch asks for; one name stands for one signature."""
    source: str
    """The file, below one of the builder's kernel roots."""
    function: str
    arguments: collections.abc.Mapping[str, str]
    constants: collections.abc.Mapping[str, int | float | bool | str | None] = {}
    """The values of all the other arguments: those that the function declares `tl.constexpr`, and None for a pointer
    that is not there. "dtype:float16" stands for Triton's own float16."""
    warps: int = 4
    stages: int = 1

    def text(self) -> str:
        """All that decides its code besides the source, in one form: it is part of the key."""
        told = {**self._asdict(), "arguments": list(self.arguments.items()), "constants": dict(self.constants)}
        return json.dumps(told, sort_keys=True, separators=(",", ":"))

    def packing(self) -> str:
        """The `struct` format of its run-time arguments: one slot of eight bytes each."""
        return "<" + "".join("Q" if kind.startswith("*") else SCALARS[_bare(kind)] for kind in self.arguments.values())


def _bare(kind: str) -> str:
    return kind.partition(":")[0]


def check(builder: str, kernels: Iterable[Kernel]) -> None:
    """Raises BuilderError for a kernel that is declared wrongly, or two of one name."""
    seen = set()
    for kernel in kernels:
        if kernel.name in seen:
            raise BuilderError(builder, f"two kernels are named {kernel.name!r}", "Give each a name of its own")
        seen.add(kernel.name)
        for argument, kind in kernel.arguments.items():
            bare, _, promise = kind.partition(":")
            known = bare[1:] in POINTEES if bare.startswith("*") else bare in SCALARS
            if not known or promise not in ("", str(ALIGNMENT)):
                kinds = f"'*' and one of {', '.join(POINTEES)}, or one of {', '.join(SCALARS)}; then perhaps ':16'"
                raise BuilderError(builder, f"{kernel.name}: {argument} has the type {kind!r}", f"Expected {kinds}")
        if kernel.warps < 1 or kernel.warps & (kernel.warps - 1):
            raise BuilderError(builder, f"{kernel.name}: warps={kernel.warps}", "Expected a power of two, such as 4")


def declared(kernels: Iterable[Kernel]) -> dict[str, str]:
    """Kernel name -> its text, as a plan and a description hold them."""
    return {kernel.name: kernel.text() for kernel in kernels}
