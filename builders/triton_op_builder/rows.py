"""The row sizes that kernels are compiled for, and which of these kernels a launch uses.

Wide loads need rows that begin at multiples of 16 bytes. Other rows use the kernels for any row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

LONG, ANY = "long", "any"
DTYPES = ("fp32", "fp16", "bf16")
LARGEST_COUNT = (1 << 31) - (1 << 16)
"""The most elements that kernels can count, block by block, in an int32: behind more it would wrap, and the loop would
never end. The distance to 2^31 is larger than all blocks that a loop reads ahead."""


class Size(NamedTuple):
    """One block size. If `once`, a row fits the block and is read once; otherwise it is read block by block."""

    name: str
    block: int
    warps: int
    once: bool
    aligned: bool

    def pointer(self, dtype: str) -> str:
        """Returns the argument type of a pointer to the first element of a row."""
        return f"*{dtype}:16" if self.aligned else f"*{dtype}"

    def integer(self, dtype: str) -> str:
        """Returns the argument type of a number of elements, or of a stride."""
        return f"{dtype}:16" if self.aligned else dtype


def row_sizes(blocks: tuple[tuple[int, int], ...], long: tuple[int, int]) -> tuple[Size, ...]:
    """Returns a size for each (block, warps), one for longer rows, and one for rows of any length at any address."""
    once = [Size(str(block), block, warps, True, True) for block, warps in blocks]
    return (*once, Size(LONG, *long, False, True), Size(ANY, 1024, 4, False, False))


FORWARD = row_sizes(((1024, 2), (4096, 8), (16384, 16)), (8192, 16))
HEAVY = row_sizes(((1024, 2), (4096, 8), (8192, 16)), (8192, 16))
"""Forward kernels that need more registers for a value. Two blocks of threads must fit on a multiprocessor, so that one
of them reads while the other adds up."""
BACKWARD = row_sizes(((1024, 4), (4096, 8), (8192, 16)), (1024, 4))
REGISTER_ROW = 8192
"""The longest row that the backward of a norm keeps in registers beside its sums; a longer one would spill."""
BACKWARD_RMS = row_sizes(((1024, 4), (4096, 8), (REGISTER_ROW, 16), (16384, 16)), (1024, 4))
"""RMS norm has one sum per column, which leaves registers for longer rows; these are read again from the cache."""


def size_for(sizes: tuple[Size, ...], columns: int, aligned: bool) -> Size:
    """Returns the size of the kernel for rows of so many columns. `sizes` is in the order of `row_sizes`."""
    if not aligned:
        return sizes[-1]
    return next((size for size in sizes[:-2] if columns <= size.block), sizes[-2])


def dtype_pairs() -> Iterator[tuple[str, str]]:
    """Yields the dtypes of rows and of their weights: the same dtype, or float32 weights."""
    for dtype in DTYPES:
        yield dtype, dtype
        if dtype != "fp32":
            yield dtype, "fp32"
