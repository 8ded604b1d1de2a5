"""Group quantisation to 8 and 4 bits, and back. Two 4-bit values share a byte, the first in its low half.

The formula: `opforge.ops.triton.references.quantize`.
"""

import triton
import triton.language as tl


@triton.jit
def _scale(low, high, BITS: tl.constexpr, SYMMETRIC: tl.constexpr):
    """The scale of groups whose values lie between these."""
    if SYMMETRIC:
        return tl.maximum(-low, high) / (2 ** (BITS - 1) - 1)
    else:
        return (high - low) / (2**BITS - 1)


@triton.jit
def _codes(value, low, scale, BITS: tl.constexpr, SYMMETRIC: tl.constexpr):
    """Integers whose low BITS bits are the codes: to the nearest, halves to even."""
    by = tl.where(scale > 0, scale, 1.0)
    if SYMMETRIC:
        most: tl.constexpr = 2 ** (BITS - 1) - 1
        held = tl.minimum(tl.maximum(value / by, -most), most)
    else:
        most: tl.constexpr = 2**BITS - 1
        held = tl.minimum(tl.maximum((value - low) / by, 0.0), most)
    # 1.5 * 2^23 leaves no bit for a fraction, and the whole number in the lowest bits: conversions are slow.
    return (held + 12582912.0).to(tl.int32, bitcast=True)


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
        high = tl.max(tl.abs(value), 1)
        low = -high
    else:
        low = tl.min(tl.where(here, value, float("inf")), 1)
        high = tl.max(tl.where(here, value, float("-inf")), 1)
        tl.store(offsets + row, low, mask=known)
    scale = _scale(low, high, BITS, SYMMETRIC)
    tl.store(scales + row, scale, mask=known)
    code = _codes(value, low[:, None], scale[:, None], BITS, SYMMETRIC)
    if BITS == 8:
        tl.store(out + row[:, None] * size + at[None, :], code.to(tl.int8), mask=here)
    else:
        first, second = tl.split(tl.reshape(code, (ROWS, BLOCK // 2, 2)))
        half = tl.arange(0, BLOCK // 2)
        there = known[:, None] & (half < size // 2)[None, :]
        tl.store(out + row[:, None] * (size // 2) + half[None, :], (first & 15 | second << 4).to(tl.int8), mask=there)


@triton.jit
def _widened(x, start, size, low, high, BLOCK: tl.constexpr):
    """The least and the greatest value that each thread has seen, with one more block."""
    at = start + tl.arange(0, BLOCK)
    here = at < size
    value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
    low = tl.minimum(low, tl.where(here, value, float("inf")))
    return low, tl.maximum(high, tl.where(here, value, float("-inf")))


@triton.jit
def _encode(x, out, start, size, low, scale, BITS: tl.constexpr, SYMMETRIC: tl.constexpr, BLOCK: tl.constexpr):
    """Write the codes of one block of a long group, which is read for the last time."""
    at = start + tl.arange(0, BLOCK)
    here = at < size
    value = tl.load(x + at, mask=here, other=0.0, eviction_policy="evict_first").to(tl.float32)
    code = _codes(value, low, scale, BITS, SYMMETRIC)
    if BITS == 8:
        tl.store(out + at, code.to(tl.int8), mask=here)
    else:
        first, second = tl.split(tl.reshape(code, (BLOCK // 2, 2)))
        half = start // 2 + tl.arange(0, BLOCK // 2)
        tl.store(out + half, (first & 15 | second << 4).to(tl.int8), mask=half < size // 2)


@triton.jit
def quantize_long(
    x,
    out,
    scales,
    offsets,
    size,
    BITS: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Many long groups: a program a group, which it reads twice, the second time backwards: what was read last is the
    likeliest to be in the cache."""
    group = tl.program_id(0).to(tl.int64)
    x += group * size
    out += group * (size // (8 // BITS))
    low = tl.full((BLOCK,), float("inf"), tl.float32)
    high = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, size, BLOCK):
        low, high = _widened(x, start, size, low, high, BLOCK)
    least = tl.min(low, 0)
    scale = _scale(least, tl.max(high, 0), BITS, SYMMETRIC)
    tl.store(scales + group, scale)
    if not SYMMETRIC:
        tl.store(offsets + group, least)
    last = (size - 1) // BLOCK * BLOCK
    for before in range(0, size, BLOCK):
        _encode(x, out, last - before, size, least, scale, BITS, SYMMETRIC, BLOCK)


@triton.jit
def extremes(x, found, size, PART: tl.constexpr, BLOCK: tl.constexpr):
    """Few long groups, first half: a program a group and part of it, which writes the least and the greatest value to
    `found` [groups, parts, 2]."""
    group = tl.program_id(1).to(tl.int64)
    part = tl.program_id(0)
    x += group * size
    low = tl.full((BLOCK,), float("inf"), tl.float32)
    high = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(part * PART, tl.minimum((part + 1).to(tl.int64) * PART, size), BLOCK):
        low, high = _widened(x, start, size, low, high, BLOCK)
    found += (group * tl.num_programs(0) + part) * 2
    tl.store(found, tl.min(low, 0))
    tl.store(found + 1, tl.max(high, 0))


@triton.jit
def encode(
    x,
    out,
    found,
    scales,
    offsets,
    size,
    BITS: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Few long groups, second half: a program a group and part of it, whose values it reads from the cache if it
    can."""
    group = tl.program_id(1).to(tl.int64)
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    lows = tl.full((BLOCK,), float("inf"), tl.float32)
    highs = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, parts, BLOCK):
        at = start + tl.arange(0, BLOCK)
        one = found + (group * parts + at) * 2
        lows = tl.minimum(lows, tl.load(one, mask=at < parts, other=float("inf")))
        highs = tl.maximum(highs, tl.load(one + 1, mask=at < parts, other=float("-inf")))
    low = tl.min(lows, 0)
    scale = _scale(low, tl.max(highs, 0), BITS, SYMMETRIC)
    if part == 0:
        tl.store(scales + group, scale)
        if not SYMMETRIC:
            tl.store(offsets + group, low)
    x += group * size
    out += group * (size // (8 // BITS))
    for start in range(part * PART, tl.minimum((part + 1).to(tl.int64) * PART, size), BLOCK):
        _encode(x, out, start, size, low, scale, BITS, SYMMETRIC, BLOCK)


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
    EACH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a block of values: y = code * scale, plus the offset unless SYMMETRIC. EACH values that stand together,
    a divisor of `size`, share the look-up of their group."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    first = start // size
    part = tl.arange(0, BLOCK // EACH) * EACH
    # Less than `size` and a block together: 32 bits hold it, and their division is the fast one.
    group = first + ((start - first * size).to(tl.uint32) + part.to(tl.uint32)) // tl.cast(size, tl.uint32)
    known = start + part < count
    scale = tl.load(scales + group, mask=known, other=0.0)[:, None]
    at = start + part[:, None] + tl.arange(0, EACH)[None, :]
    here = at < count
    if BITS == 8:
        code = tl.load(codes + at, mask=here, other=0).to(tl.int32)
        code = code if SYMMETRIC else code & 255
    else:
        half = (start + part[:, None]) // 2 + tl.arange(0, EACH // 2)[None, :]
        pair = tl.load(codes + half, mask=half < count // 2, other=0).to(tl.int32)
        code = tl.reshape(tl.join(pair & 15, pair >> 4 & 15), (BLOCK // EACH, EACH))
        code = (code ^ 8) - 8 if SYMMETRIC else code  # the sign of four bits
    value = code.to(tl.float32) * scale
    if not SYMMETRIC:
        value += tl.load(offsets + group, mask=known, other=0.0)[:, None]
    tl.store(y + at, value, mask=here)
