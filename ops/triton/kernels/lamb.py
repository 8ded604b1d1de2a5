"""LAMB over many tensors in three launches: moments and directions, the trust ratios, the parameters.

The formula: `opforge.ops.triton.references.lamb`. Nothing is added up by atomics: the same inputs give the same bits.
"""

import triton
import triton.language as tl

from .optimizer_table import address


@triton.jit
def _direct(
    param, grad, first, second, direction, at, count, scale, decay, beta1, rest1, beta2, rest2, correction, root, eps,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """One block: the squares of the parameters and of the direction, 0 where there is nothing."""
    here = None if WHOLE else at < count  # a mask would forbid wide loads
    p = tl.load(param + at, mask=here).to(tl.float32)
    g = tl.load(grad + at, mask=here).to(tl.float32) * scale
    m = beta1 * tl.load(first + at, mask=here) + rest1 * g
    v = beta2 * tl.load(second + at, mask=here) + rest2 * g * g
    u = m * correction / (tl.sqrt(v) * root + eps) + decay * p
    tl.store(first + at, m, mask=here)
    tl.store(second + at, v, mask=here)
    tl.store(direction + at, u, mask=here)
    p, u = p * p, u * u
    if not WHOLE:
        p, u = tl.where(here, p, 0.0), tl.where(here, u, 0.0)
    return p, u


@triton.jit
def direct(
    table,
    sums,
    scale,
    decay,
    beta1,
    rest1,
    beta2,
    rest2,
    correction,
    root,
    eps,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a row (param, grad, exp_avg, exp_avg_sq, direction, count): updates the moments, writes the
    direction, and to `sums` [rows, 2] the sums of squares of the parameters and of the direction. `correction` is 1 /
    (1 - beta1^step)."""
    number = tl.program_id(0).to(tl.int64)
    row = table + number * 6
    param = address(row, 0, DTYPE, ALIGNED)
    grad = address(row, 1, DTYPE, ALIGNED)
    first = address(row, 2, tl.float32, ALIGNED)
    second = address(row, 3, tl.float32, ALIGNED)
    direction = address(row, 4, tl.float32, ALIGNED)
    count = tl.load(row + 5)
    of_param = tl.zeros((BLOCK,), tl.float32)
    of_direction = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        if start + BLOCK <= count:
            of_p, of_u = _direct(
                param, grad, first, second, direction, at, count,
                scale, decay, beta1, rest1, beta2, rest2, correction, root, eps, True,
            )  # fmt: skip
        else:
            of_p, of_u = _direct(
                param, grad, first, second, direction, at, count,
                scale, decay, beta1, rest1, beta2, rest2, correction, root, eps, False,
            )  # fmt: skip
        of_param += of_p
        of_direction += of_u
    tl.store(sums + number * 2, tl.sum(of_param, 0))
    tl.store(sums + number * 2 + 1, tl.sum(of_direction, 0))


@triton.jit
def trust(spans, sums, ratios, BLOCK: tl.constexpr):
    """One program a tensor, whose rows `spans` [tensors, 2] tells: |param| / |direction|, or 1 if either is 0."""
    number = tl.program_id(0).to(tl.int64)
    begin = tl.load(spans + number * 2)
    end = tl.load(spans + number * 2 + 1)
    of_param = tl.zeros((BLOCK,), tl.float32)
    of_direction = tl.zeros((BLOCK,), tl.float32)
    for start in range(begin, end, BLOCK):
        at = start + tl.arange(0, BLOCK)
        here = at < end
        of_param += tl.load(sums + at * 2, mask=here, other=0.0)
        of_direction += tl.load(sums + at * 2 + 1, mask=here, other=0.0)
    p = tl.sqrt(tl.sum(of_param, 0))
    u = tl.sqrt(tl.sum(of_direction, 0))
    tl.store(ratios + number, tl.where((p > 0) & (u > 0), p / u, 1.0))


@triton.jit
def apply(table, ratios, lr, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """One program a row (param, direction, tensor, count): param -= lr * ratio * direction."""
    row = table + tl.program_id(0).to(tl.int64) * 4
    param = address(row, 0, DTYPE, ALIGNED)
    direction = address(row, 1, tl.float32, ALIGNED)
    step = lr * tl.load(ratios + tl.load(row + 2))
    count = tl.load(row + 3)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        if start + BLOCK <= count:
            p = tl.load(param + at).to(tl.float32)
            tl.store(param + at, (p - step * tl.load(direction + at)).to(DTYPE))
        else:
            here = at < count
            p = tl.load(param + at, mask=here, other=0.0).to(tl.float32)
            tl.store(param + at, (p - step * tl.load(direction + at, mask=here, other=0.0)).to(DTYPE), mask=here)
