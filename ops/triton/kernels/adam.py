"""Adam and AdamW over many tensors in one launch. The formula: `opforge.ops.triton.references.adam`."""

import triton
import triton.language as tl

from .optimizer_table import address


@triton.jit
def update(
    table,
    scale,
    keep,
    decay,
    beta1,
    rest1,
    beta2,
    rest2,
    step_size,
    root,
    eps,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a row (param, grad, exp_avg, exp_avg_sq, count). `keep` is 1 - lr * weight_decay for AdamW,
    otherwise 1; `decay` the weight decay of Adam; `rest1` 1 - beta1; `root` 1 / sqrt of the second moment's
    correction."""
    row = table + tl.program_id(0).to(tl.int64) * 5
    param = address(row, 0, DTYPE, ALIGNED)
    grad = address(row, 1, DTYPE, ALIGNED)
    first = address(row, 2, tl.float32, ALIGNED)
    second = address(row, 3, tl.float32, ALIGNED)
    count = tl.load(row + 4)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        if start + BLOCK <= count:  # a mask would forbid wide loads
            p = tl.load(param + at).to(tl.float32)
            g = tl.load(grad + at).to(tl.float32) * scale + decay * p
            m = beta1 * tl.load(first + at) + rest1 * g
            v = beta2 * tl.load(second + at) + rest2 * g * g
            p = p * keep - step_size * (m / (tl.sqrt(v) * root + eps))
            tl.store(param + at, p.to(DTYPE))
            tl.store(first + at, m)
            tl.store(second + at, v)
        else:
            here = at < count
            p = tl.load(param + at, mask=here, other=0.0).to(tl.float32)
            g = tl.load(grad + at, mask=here, other=0.0).to(tl.float32) * scale + decay * p
            m = beta1 * tl.load(first + at, mask=here, other=0.0) + rest1 * g
            v = beta2 * tl.load(second + at, mask=here, other=0.0) + rest2 * g * g
            p = p * keep - step_size * (m / (tl.sqrt(v) * root + eps))
            tl.store(param + at, p.to(DTYPE), mask=here)
            tl.store(first + at, m, mask=here)
            tl.store(second + at, v, mask=here)
