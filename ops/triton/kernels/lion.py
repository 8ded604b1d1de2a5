"""Lion over many tensors in one launch. The formula: `opforge.ops.triton.references.lion`."""

import triton
import triton.language as tl

from .optimizer_table import address


@triton.jit
def _rule(p, g, m, keep, beta1, rest1, beta2, rest2, lr):
    direction = beta1 * m + rest1 * g
    sign = tl.where(direction > 0, 1.0, tl.where(direction < 0, -1.0, direction))  # 0 stays 0, NaN stays NaN
    return p * keep - lr * sign, beta2 * m + rest2 * g


@triton.jit
def update(
    table,
    scale,
    keep,
    beta1,
    rest1,
    beta2,
    rest2,
    lr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a row (param, grad, exp_avg, count). `keep` is 1 - lr * weight_decay, `rest1` 1 - beta1."""
    row = table + tl.program_id(0).to(tl.int64) * 4
    param = address(row, 0, DTYPE, ALIGNED)
    grad = address(row, 1, DTYPE, ALIGNED)
    first = address(row, 2, tl.float32, ALIGNED)
    count = tl.load(row + 3)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        if start + BLOCK <= count:  # a mask would forbid wide loads
            p = tl.load(param + at).to(tl.float32)
            g = tl.load(grad + at).to(tl.float32) * scale
            p, m = _rule(p, g, tl.load(first + at), keep, beta1, rest1, beta2, rest2, lr)
            tl.store(param + at, p.to(DTYPE))
            tl.store(first + at, m)
        else:
            here = at < count
            p = tl.load(param + at, mask=here, other=0.0).to(tl.float32)
            g = tl.load(grad + at, mask=here, other=0.0).to(tl.float32) * scale
            p, m = _rule(p, g, tl.load(first + at, mask=here, other=0.0), keep, beta1, rest1, beta2, rest2, lr)
            tl.store(param + at, p.to(DTYPE), mask=here)
            tl.store(first + at, m, mask=here)
