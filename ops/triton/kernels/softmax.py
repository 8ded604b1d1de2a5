"""Softmax along the rows of a matrix, forward and backward. A row that fits a block is read once (ONCE)."""

import triton
import triton.language as tl


@triton.jit
def forward(x, y, columns, x_stride, y_stride, ONCE: tl.constexpr, EACH: tl.constexpr, BLOCK: tl.constexpr):
    """Computes the softmax of a row, one program per row. A row of only -inf gives NaN, as torch does."""
    row = tl.program_id(0).to(tl.int64)
    x += row * x_stride
    y += row * y_stride
    if ONCE:
        at = tl.arange(0, BLOCK)
        here = at < columns
        value = tl.load(x + at, mask=here, other=float("-inf")).to(tl.float32)
        power = tl.exp(value - tl.max(value, 0))
        tl.store(y + at, power * (1.0 / tl.sum(power, 0)), mask=here)
    else:
        # Each slot of EACH values that a thread reads together has a running maximum, and a running sum of powers
        # relative to it. The slots are combined after the last block.
        greatest = tl.full((BLOCK // EACH,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK // EACH,), tl.float32)
        for start in range(0, columns, BLOCK):
            at = start + tl.arange(0, BLOCK)
            value = tl.load(x + at, mask=at < columns, other=float("-inf")).to(tl.float32)
            value = tl.reshape(value, (BLOCK // EACH, EACH))
            maximum = tl.maximum(greatest, tl.max(value, 1), propagate_nan=tl.PropagateNan.ALL)
            # While all values were -inf, -inf would be subtracted from -inf, which is NaN.
            shift = tl.where(maximum == float("-inf"), 0.0, maximum)
            total = total * tl.exp(greatest - shift) + tl.sum(tl.exp(value - shift[:, None]), 1)
            greatest = maximum
        top = tl.max(greatest, 0)
        scale = 1.0 / tl.sum(total * tl.exp(greatest - top), 0)
        last = (columns - 1) // BLOCK * BLOCK
        for before in range(0, columns, BLOCK):  # backwards: the data read last is most likely in the cache
            at = last - before + tl.arange(0, BLOCK)
            here = at < columns
            value = tl.load(x + at, mask=here, other=float("-inf"), eviction_policy="evict_first").to(tl.float32)
            tl.store(y + at, tl.exp(value - top) * scale, mask=here, eviction_policy="evict_first")


@triton.jit
def backward(dy, y, dx, columns, dy_stride, y_stride, dx_stride, ONCE: tl.constexpr, BLOCK: tl.constexpr):
    """Computes dx = y * (dy - sum(dy * y)), one program per row."""
    row = tl.program_id(0).to(tl.int64)
    dy += row * dy_stride
    y += row * y_stride
    dx += row * dx_stride
    if ONCE:
        at = tl.arange(0, BLOCK)
        here = at < columns
        slope = tl.load(dy + at, mask=here, other=0.0).to(tl.float32)
        value = tl.load(y + at, mask=here, other=0.0).to(tl.float32)
        tl.store(dx + at, value * (slope - tl.sum(slope * value, 0)), mask=here)
    else:
        products = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, columns, BLOCK):
            at = start + tl.arange(0, BLOCK)
            here = at < columns
            slope = tl.load(dy + at, mask=here, other=0.0).to(tl.float32)
            products += slope * tl.load(y + at, mask=here, other=0.0).to(tl.float32)
        total = tl.sum(products, 0)
        last = (columns - 1) // BLOCK * BLOCK
        for before in range(0, columns, BLOCK):
            at = last - before + tl.arange(0, BLOCK)
            here = at < columns
            slope = tl.load(dy + at, mask=here, other=0.0, eviction_policy="evict_first").to(tl.float32)
            value = tl.load(y + at, mask=here, other=0.0, eviction_policy="evict_first").to(tl.float32)
            tl.store(dx + at, value * (slope - total), mask=here, eviction_policy="evict_first")
