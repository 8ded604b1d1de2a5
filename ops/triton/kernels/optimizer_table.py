"""How a kernel reads one row of the table of chunks that ops/triton/chunks.py writes: addresses and a count."""

import triton
import triton.language as tl


@triton.jit
def address(row, column: tl.constexpr, dtype: tl.constexpr, ALIGNED: tl.constexpr):
    """The pointer in a column of the row; one that is aligned allows loads of 16 bytes."""
    pointer = tl.load(row + column).to(tl.pointer_type(dtype))
    return tl.multiple_of(pointer, 16) if ALIGNED else pointer
