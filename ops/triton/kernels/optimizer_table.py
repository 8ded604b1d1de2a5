"""How a kernel reads the tensors that a row of the table of ops/triton/chunks.py names: addresses, dtypes, a count.

A dtype that is "any" is told by the row, and the address need not be aligned: slower, and for every mix of dtypes.
None: there is no such tensor.
"""

import triton
import triton.language as tl


@triton.jit
def row_of(table, noop, WIDTH: tl.constexpr):
    """This program's row, its tensors' dtypes (two bits each), its count (0 where the flag is set), its tensor."""
    row = table + tl.program_id(0).to(tl.int64) * WIDTH
    stop = (tl.load(noop) & 0x7FFFFFFF) != 0  # the flag is an int32 or a float32
    return row, tl.load(row + WIDTH - 3), tl.where(stop, 0, tl.load(row + WIDTH - 2)), tl.load(row + WIDTH - 1)


@triton.jit
def address(row, column: tl.constexpr, DTYPE: tl.constexpr):
    """What a column holds, as `read` and `write` take it; a typed pointer allows loads of 16 bytes."""
    place = tl.load(row + column)
    if DTYPE is None or DTYPE == "any":
        return place
    else:
        return tl.multiple_of(place.to(tl.pointer_type(DTYPE)), 16)


@triton.jit
def read(place, kinds, column: tl.constexpr, at, here, DTYPE: tl.constexpr):
    """The values of a column's tensor, as float32."""
    if DTYPE == "any":
        kind = (kinds >> (2 * column)) & 3
        value = tl.zeros(at.shape, tl.float32)
        if kind == 0:
            value = tl.load(place.to(tl.pointer_type(tl.float32)) + at, mask=here)
        elif kind == 1:
            value = tl.load(place.to(tl.pointer_type(tl.float16)) + at, mask=here).to(tl.float32)
        else:
            value = tl.load(place.to(tl.pointer_type(tl.bfloat16)) + at, mask=here).to(tl.float32)
        return value
    else:
        return tl.load(place + at, mask=here).to(tl.float32)


@triton.jit
def write(place, kinds, column: tl.constexpr, at, value, here, DTYPE: tl.constexpr):
    """Values to a column's tensor, if there is one."""
    if DTYPE == "any":
        kind = (kinds >> (2 * column)) & 3
        if place != 0:
            if kind == 0:
                tl.store(place.to(tl.pointer_type(tl.float32)) + at, value, mask=here)
            elif kind == 1:
                tl.store(place.to(tl.pointer_type(tl.float16)) + at, value.to(tl.float16), mask=here)
            else:
                tl.store(place.to(tl.pointer_type(tl.bfloat16)) + at, value.to(tl.bfloat16), mask=here)
    elif DTYPE is not None:
        tl.store(place + at, value.to(DTYPE), mask=here)
