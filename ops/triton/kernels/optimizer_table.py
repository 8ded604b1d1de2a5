"""How a kernel reads and writes the tensors of a row of the table of ops/triton/optimizers/chunks.py.

If a DTYPE is "any", the row holds the dtype, and the address need not be aligned. That is slower, and works for every
mix of dtypes. If a DTYPE is None, there is no such tensor.
"""

import triton
import triton.language as tl


@triton.jit
def row_of(table, noop, WIDTH: tl.constexpr):
    """Returns this program's row, dtypes (two bits per tensor), count (0 if the flag is set), and tensor's index."""
    row = table + tl.program_id(0).to(tl.int64) * WIDTH
    stop = (tl.load(noop) & 0x7FFFFFFF) != 0  # the flag is an int32 or a float32
    return row, tl.load(row + WIDTH - 3), tl.where(stop, 0, tl.load(row + WIDTH - 2)), tl.load(row + WIDTH - 1)


@triton.jit
def address(row, column: tl.constexpr, DTYPE: tl.constexpr):
    """Returns a column's address as `read` and `write` take it. A typed pointer allows loads of 16 bytes."""
    pointer = tl.load(row + column)
    if DTYPE is None or DTYPE == "any":
        return pointer
    else:
        return tl.multiple_of(pointer.to(tl.pointer_type(DTYPE)), 16)


@triton.jit
def read(pointer, kinds, column: tl.constexpr, at, here, DTYPE: tl.constexpr):
    """Returns values of a column's tensor, as float32."""
    if DTYPE == "any":
        kind = (kinds >> (2 * column)) & 3
        value = tl.zeros(at.shape, tl.float32)
        if kind == 0:
            value = tl.load(pointer.to(tl.pointer_type(tl.float32)) + at, mask=here)
        elif kind == 1:
            value = tl.load(pointer.to(tl.pointer_type(tl.float16)) + at, mask=here).to(tl.float32)
        else:
            value = tl.load(pointer.to(tl.pointer_type(tl.bfloat16)) + at, mask=here).to(tl.float32)
        return value
    else:
        return tl.load(pointer + at, mask=here).to(tl.float32)


@triton.jit
def write(pointer, kinds, column: tl.constexpr, at, value, here, DTYPE: tl.constexpr):
    """Writes values to a column's tensor, if there is one."""
    if DTYPE == "any":
        kind = (kinds >> (2 * column)) & 3
        if pointer != 0:
            if kind == 0:
                tl.store(pointer.to(tl.pointer_type(tl.float32)) + at, value, mask=here)
            elif kind == 1:
                tl.store(pointer.to(tl.pointer_type(tl.float16)) + at, value.to(tl.float16), mask=here)
            else:
                tl.store(pointer.to(tl.pointer_type(tl.bfloat16)) + at, value.to(tl.bfloat16), mask=here)
    elif DTYPE is not None:
        tl.store(pointer + at, value.to(DTYPE), mask=here)
