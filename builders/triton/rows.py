"""The sizes of rows that kernels are compiled for, and which of them a launch takes.

Wide loads need rows that begin at multiples of 16 bytes; rows that do not take the kernels for any row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

LONG, ANY = "long", "any"
DTYPES = ("fp32", "fp16", "bf16")


class Size(NamedTuple):
    """One size of block. `once`: a row fits it, and is read once; otherwise it is read block by block."""

    name: str
    block: int
    warps: int
    once: bool
    aligned: bool

    def pointer(self, dtype: str) -> str:
        """The type of a pointer to a row's first element."""
        return f"*{dtype}:16" if self.aligned else f"*{dtype}"

    def integer(self, dtype: str) -> str:
        """The type of a count of elements, or of a stride."""
        return f"{dtype}:16" if self.aligned else dtype


def sizes(blocks: tuple[tuple[int, int], ...], long: tuple[int, int]) -> tuple[Size, ...]:
    """A size for each (block, warps), one for longer rows, and one for rows of any length that begin anywhere."""
    fitting = [Size(str(block), block, warps, True, True) for block, warps in blocks]
    return (*fitting, Size(LONG, *long, False, True), Size(ANY, 1024, 4, False, False))


FORWARD = sizes(((1024, 2), (4096, 8), (16384, 16)), (8192, 16))
HEAVY = sizes(((1024, 2), (4096, 8), (8192, 16)), (8192, 16))
"""Forward, where a value takes more registers: two blocks of threads must fit on a multiprocessor, so that one reads
while the other adds up."""
BACKWARD = sizes(((1024, 4), (4096, 8), (8192, 16)), (1024, 4))
KEPT = 8192
"""The longest row that the backward of norms keeps in registers beside its sums; more would spill."""
BACKWARD_RMS = sizes(((1024, 4), (4096, 8), (KEPT, 16), (16384, 16)), (1024, 4))
"""RMS norm has one sum a column, which leaves room for longer rows; they are read again from the cache."""


def fitting(offered: tuple[Size, ...], columns: int, aligned: bool) -> Size:
    """The size that a row of so many columns takes."""
    if not aligned:
        return offered[-1]
    return next((one for one in offered[:-2] if columns <= one.block), offered[-2])


def mixed() -> Iterator[tuple[str, str]]:
    """The dtypes of rows and of the weights beside them: the same, or float32 weights."""
    for dtype in DTYPES:
        yield dtype, dtype
        if dtype != "fp32":
            yield dtype, "fp32"
