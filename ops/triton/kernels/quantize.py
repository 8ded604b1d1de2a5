"""Group quantization to 8 and 4 bits, and dequantization. Two 4-bit values share a byte, the first in its low half.

For the formula see `opforge.ops.triton.references.quantize`.
"""

import triton
import triton.language as tl

# A GPU's max and min drop NaN, and so would tl.max and tl.min: a group with a NaN would get a finite scale.


@triton.jit
def _lower(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _higher(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _smallest(values, axis: tl.constexpr):
    return tl.reduce(values, axis, _lower)


@triton.jit
def _largest(values, axis: tl.constexpr):
    return tl.reduce(values, axis, _higher)


@triton.jit
def _scale(low, high, BITS: tl.constexpr, SYMMETRIC: tl.constexpr):
    """Returns the scale of groups with these smallest and largest values."""
    if SYMMETRIC:
        return _higher(-low, high) / (2 ** (BITS - 1) - 1)
    else:
        return (high - low) / (2**BITS - 1)


@triton.jit
def _codes(value, low, scale, BITS: tl.constexpr, SYMMETRIC: tl.constexpr):
    """Returns integers whose low BITS bits are the codes, rounded to the nearest, halves to even."""
    divisor = tl.where(scale > 0, scale, 1.0)
    if SYMMETRIC:
        largest: tl.constexpr = 2 ** (BITS - 1) - 1
        clamped = tl.minimum(tl.maximum(value / divisor, -largest), largest)
    else:
        largest: tl.constexpr = 2**BITS - 1
        clamped = tl.minimum(tl.maximum((value - low) / divisor, 0.0), largest)
    # A conversion to int is slow. A sum with 1.5 * 2^23 has no bit for a fraction, and the integer in its low bits.
    return (clamped + 12582912.0).to(tl.int32, bitcast=True)


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
    """Quantizes ROWS groups of `size` values in each program, at most BLOCK each."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    valid = row < groups
    here = valid[:, None] & (at < size)[None, :]
    value = tl.load(x + row[:, None] * size + at[None, :], mask=here, other=0.0).to(tl.float32)
    if SYMMETRIC:
        high = _largest(tl.abs(value), 1)
        low = -high
    else:
        low = _smallest(tl.where(here, value, float("inf")), 1)
        high = _largest(tl.where(here, value, float("-inf")), 1)
        tl.store(offsets + row, low, mask=valid)
    scale = _scale(low, high, BITS, SYMMETRIC)
    tl.store(scales + row, scale, mask=valid)
    code = _codes(value, low[:, None], scale[:, None], BITS, SYMMETRIC)
    if BITS == 8:
        tl.store(out + row[:, None] * size + at[None, :], code.to(tl.int8), mask=here)
    else:
        first, second = tl.split(tl.reshape(code, (ROWS, BLOCK // 2, 2)))
        half = tl.arange(0, BLOCK // 2)
        there = valid[:, None] & (half < size // 2)[None, :]
        tl.store(out + row[:, None] * (size // 2) + half[None, :], (first & 15 | second << 4).to(tl.int8), mask=there)


@triton.jit
def _widened(x, start, size, low, high, BLOCK: tl.constexpr):
    """Returns the smallest and the largest value that each thread has seen, with one more block."""
    at = start + tl.arange(0, BLOCK)
    here = at < size
    value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
    return _lower(low, tl.where(here, value, float("inf"))), _higher(high, tl.where(here, value, float("-inf")))


@triton.jit
def _encode(x, out, start, size, low, scale, BITS: tl.constexpr, SYMMETRIC: tl.constexpr, BLOCK: tl.constexpr):
    """Writes the codes of one block of a long group. The block is read for the last time."""
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
    """Quantizes many long groups: one program per group, which it reads twice.

    The second time it reads backwards, since the data read last is most likely in the cache.
    """
    group = tl.program_id(0).to(tl.int64)
    x += group * size
    out += group * (size // (8 // BITS))
    low = tl.full((BLOCK,), float("inf"), tl.float32)
    high = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, size, BLOCK):
        low, high = _widened(x, start, size, low, high, BLOCK)
    smallest = _smallest(low, 0)
    scale = _scale(smallest, _largest(high, 0), BITS, SYMMETRIC)
    tl.store(scales + group, scale)
    if not SYMMETRIC:
        tl.store(offsets + group, smallest)
    last = (size - 1) // BLOCK * BLOCK
    for before in range(0, size, BLOCK):
        _encode(x, out, last - before, size, smallest, scale, BITS, SYMMETRIC, BLOCK)


@triton.jit
def extremes(x, partial, size, PART: tl.constexpr, BLOCK: tl.constexpr):
    """Reduces few long groups, in the first of two launches: one program per group and part.

    It writes the smallest and the largest value of the part to `partial` [groups, parts, 2].
    """
    group = tl.program_id(1).to(tl.int64)
    part = tl.program_id(0)
    x += group * size
    low = tl.full((BLOCK,), float("inf"), tl.float32)
    high = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(part * PART, tl.minimum((part + 1).to(tl.int64) * PART, size), BLOCK):
        low, high = _widened(x, start, size, low, high, BLOCK)
    partial += (group * tl.num_programs(0) + part) * 2
    tl.store(partial, _smallest(low, 0))
    tl.store(partial + 1, _largest(high, 0))


@triton.jit
def encode(
    x,
    out,
    partial,
    scales,
    offsets,
    size,
    BITS: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Writes the codes of few long groups, in the second launch: one program per group and part.

    The values are usually still in the cache.
    """
    group = tl.program_id(1).to(tl.int64)
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    lows = tl.full((BLOCK,), float("inf"), tl.float32)
    highs = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, parts, BLOCK):
        at = start + tl.arange(0, BLOCK)
        pair = partial + (group * parts + at) * 2
        lows = _lower(lows, tl.load(pair, mask=at < parts, other=float("inf")))
        highs = _higher(highs, tl.load(pair + 1, mask=at < parts, other=float("-inf")))
    low = _smallest(lows, 0)
    scale = _scale(low, _largest(highs, 0), BITS, SYMMETRIC)
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
    """Computes y = code * scale, plus the offset unless SYMMETRIC, one program per block of values.

    EACH adjacent values, a divisor of `size`, share the look-up of their group.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    first = start // size
    part = tl.arange(0, BLOCK // EACH) * EACH
    # The dividend is less than `size` plus a block, so it fits 32 bits, whose division is faster.
    group = first + ((start - first * size).to(tl.uint32) + part.to(tl.uint32)) // tl.cast(size, tl.uint32)
    valid = start + part < count
    scale = tl.load(scales + group, mask=valid, other=0.0)[:, None]
    at = start + part[:, None] + tl.arange(0, EACH)[None, :]
    here = at < count
    if BITS == 8:
        code = tl.load(codes + at, mask=here, other=0).to(tl.int32)
        code = code if SYMMETRIC else code & 255
    else:
        half = (start + part[:, None]) // 2 + tl.arange(0, EACH // 2)[None, :]
        pair = tl.load(codes + half, mask=half < count // 2, other=0).to(tl.int32)
        code = tl.reshape(tl.join(pair & 15, pair >> 4 & 15), (BLOCK // EACH, EACH))
        code = (code ^ 8) - 8 if SYMMETRIC else code  # extends the sign of four bits
    value = code.to(tl.float32) * scale
    if not SYMMETRIC:
        value += tl.load(offsets + group, mask=valid, other=0.0)[:, None]
    tl.store(y + at, value, mask=here)
