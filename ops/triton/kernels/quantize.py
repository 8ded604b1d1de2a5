"""Group quantisation to 8 and 4 bits, and back. Two 4-bit values share a byte, the first in its low half.

The formula: `opforge.ops.triton.references.quantize`.
"""

import triton
import triton.language as tl


@triton.jit
def _rounded(x):
    """To the nearest whole number, halves to even; |x| < 2^22. The sum leaves no bit for a fraction."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def quantize(
    x,
    out,
    scales,
    offsets,
    groups,
    size,
    BITS: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program takes ROWS groups of `size` values, BLOCK at most."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    known = row < groups
    here = known[:, None] & (at < size)[None, :]
    value = tl.load(x + row[:, None] * size + at[None, :], mask=here, other=0.0).to(tl.float32)
    if SYMMETRIC:
        most: tl.constexpr = 2 ** (BITS - 1) - 1
        scale = tl.max(tl.abs(value), 1) / most
        by = tl.where(scale > 0, scale, 1.0)
        code = _rounded(value / by[:, None])
        code = tl.minimum(tl.maximum(code, -most), most).to(tl.int32)
    else:
        most: tl.constexpr = 2**BITS - 1
        low = tl.min(tl.where(here, value, float("inf")), 1)
        high = tl.max(tl.where(here, value, float("-inf")), 1)
        scale = (high - low) / most
        by = tl.where(scale > 0, scale, 1.0)
        code = _rounded((value - low[:, None]) / by[:, None])
        code = tl.minimum(tl.maximum(code, 0.0), most).to(tl.int32)
        tl.store(offsets + row, low, mask=known)
    tl.store(scales + row, scale, mask=known)
    if BITS == 8:
        tl.store(out + row[:, None] * size + at[None, :], code.to(tl.int8), mask=here)
    else:
        first, second = tl.split(tl.reshape(code & 15, (ROWS, BLOCK // 2, 2)))
        half = tl.arange(0, BLOCK // 2)
        there = known[:, None] & (half < size // 2)[None, :]
        tl.store(out + row[:, None] * (size // 2) + half[None, :], (first | second << 4).to(tl.int8), mask=there)


@triton.jit
def dequantize(
    codes,
    scales,
    offsets,
    y,
    count,
    size,
    BITS: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a block of values: y = code * scale, plus the offset unless SYMMETRIC."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < count
    if BITS == 8:
        code = tl.load(codes + at, mask=here, other=0).to(tl.int32)
        code = code if SYMMETRIC else code & 255
    else:
        code = tl.load(codes + at // 2, mask=here, other=0).to(tl.int32) >> (at % 2 * 4).to(tl.int32) & 15
        code = (code ^ 8) - 8 if SYMMETRIC else code  # the sign of four bits
    group = at // size
    value = code.to(tl.float32) * tl.load(scales + group, mask=here, other=0.0)
    if not SYMMETRIC:
        value += tl.load(offsets + group, mask=here, other=0.0)
    tl.store(y + at, value, mask=here)
