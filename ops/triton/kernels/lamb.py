"""LAMB over many tensors in three launches: moments and sums of squares, the ratios of norms, the parameters.

For the formula see `opforge.ops.reference.lamb`. No sum uses atomics, so the same inputs give the same bits. The host
reads nothing, so a graph can capture the launches. The last launch computes the direction again from the stored
moments, which moves no more bytes than storing the direction would.
"""

import triton
import triton.language as tl

from .optimizer_table import address, read, row_of, write
from .rules import average, average_square, number, rate_and_root


@triton.jit
def _direction(p, m, v, decay, inside, outside):
    return tl.fma(decay, tl.where(decay != 0.0, p, 0.0), tl.div_rn(m, tl.sqrt_rn(v + inside) + outside))


@triton.jit
def _accumulate(
    param, grad, first, second, kinds, at, count, sign, decay, weight1, factor1, weight2, factor2, inside, outside,
    WHOLE: tl.constexpr, PARAM: tl.constexpr, GRAD: tl.constexpr, STATE: tl.constexpr,
):  # fmt: skip
    """Updates the moments of one block. Returns the squares of the params and of the direction, 0 beyond `count`."""
    here = None if WHOLE else at < count  # a mask would prevent wide loads
    p, g = read(param, kinds, 0, at, here, PARAM), read(grad, kinds, 1, at, here, GRAD) * sign
    m = average(read(first, kinds, 2, at, here, STATE), g, weight1, factor1)
    v = average_square(read(second, kinds, 3, at, here, STATE), g, weight2, factor2)
    u = _direction(p, m, v, decay, inside, outside)
    write(first, kinds, 2, at, m, here, STATE)
    write(second, kinds, 3, at, v, here, STATE)
    p, u = p * p, u * u
    if not WHOLE:
        p, u = tl.where(here, p, 0.0), tl.where(here, u, 0.0)
    return p, u


@triton.jit
def accumulate(
    table,
    noop,
    sums,
    scale_at,
    sign,
    decay,
    weight1,
    factor1,
    weight2,
    factor2,
    inside,
    outside,
    PARAM: tl.constexpr,
    GRAD: tl.constexpr,
    STATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Updates the moments of each row (param, grad, exp_avg, exp_avg_sq, copy) in one program.

    It writes the sums of squares of the parameters and of the direction to `sums` [rows, 2]. `inside` and `outside` are
    eps or 0: what is added inside and outside of the square root.
    """
    row, kinds, count, _tensor = row_of(table, noop, 8)
    param, grad = address(row, 0, PARAM), address(row, 1, GRAD)
    first, second = address(row, 2, STATE), address(row, 3, STATE)
    sign = sign / number(scale_at, 1.0)
    param_squares = tl.zeros((BLOCK,), tl.float32)
    direction_squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        if start + BLOCK <= count:
            p, u = _accumulate(
                param, grad, first, second, kinds, at, count,
                sign, decay, weight1, factor1, weight2, factor2, inside, outside, True, PARAM, GRAD, STATE,
            )  # fmt: skip
        else:
            p, u = _accumulate(
                param, grad, first, second, kinds, at, count,
                sign, decay, weight1, factor1, weight2, factor2, inside, outside, False, PARAM, GRAD, STATE,
            )  # fmt: skip
        param_squares += p
        direction_squares += u
    row_index = tl.program_id(0).to(tl.int64)
    tl.store(sums + row_index * 2, tl.sum(param_squares, 0))
    tl.store(sums + row_index * 2 + 1, tl.sum(direction_squares, 0))


@triton.jit
def trust(spans, noop, sums, ratios, smallest, largest, BLOCK: tl.constexpr):
    """Writes |param| / |direction| of each tensor, clamped to the bounds, or 1 if either norm is 0. One program each.

    `spans` [tensors, 3] holds a tensor's first row, the row after its last one, and its index.
    """
    span = spans + tl.program_id(0).to(tl.int64) * 3
    begin, end = tl.load(span), tl.load(span + 1)
    param_squares = tl.zeros((BLOCK,), tl.float64)
    direction_squares = tl.zeros((BLOCK,), tl.float64)
    for start in range(begin, end, BLOCK):
        at = start + tl.arange(0, BLOCK)
        here = at < end
        param_squares += tl.load(sums + at * 2, mask=here, other=0.0).to(tl.float64)
        direction_squares += tl.load(sums + at * 2 + 1, mask=here, other=0.0).to(tl.float64)
    p = tl.sqrt(tl.sum(param_squares, 0)).to(tl.float32)
    u = tl.sqrt(tl.sum(direction_squares, 0)).to(tl.float32)
    quotient = tl.div_rn(p, tl.where(u == 0, 1.0, u))
    # Not by minimum and maximum, which would turn NaN into a bound.
    clamped = tl.where(quotient > largest, largest, tl.where(quotient < smallest, smallest, quotient))
    updates = (tl.load(noop) & 0x7FFFFFFF) == 0
    tl.store(ratios + tl.load(span + 2), tl.where((p == 0) | (u == 0), 1.0, clamped), mask=updates)


@triton.jit
def _descend(
    param, first, second, copy, kinds, at, here, step, decay, inside, outside,
    PARAM: tl.constexpr, STATE: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    p, m = read(param, kinds, 0, at, here, PARAM), read(first, kinds, 2, at, here, STATE)
    v = read(second, kinds, 3, at, here, STATE)
    p = tl.fma(-step, _direction(p, m, v, decay, inside, outside), p)
    write(param, kinds, 0, at, p, here, PARAM)
    write(copy, kinds, 4, at, p, here, COPY)


@triton.jit
def descend(
    table,
    noop,
    ratios,
    lr_at,
    step_at,
    decay,
    inside,
    outside,
    rate,
    lr,
    step,
    log_beta1,
    log_beta2,
    PARAM: tl.constexpr,
    STATE: tl.constexpr,
    COPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Computes param -= rate * ratio * direction, one program per row.

    `rate` is lr * sqrt(1 - beta2^t) / (1 - beta1^t). It is computed here if `lr_at` or `step_at` is the address of a
    number.
    """
    row, kinds, count, tensor = row_of(table, noop, 8)
    param, copy = address(row, 0, PARAM), address(row, 4, COPY)
    first, second = address(row, 2, STATE), address(row, 3, STATE)
    rate, _root = rate_and_root(lr_at, step_at, lr, step, log_beta1, log_beta2, rate, rate)
    factor = rate * tl.load(ratios + tensor)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        if start + BLOCK <= count:
            _descend(
                param, first, second, copy, kinds, at, None, factor, decay, inside, outside, PARAM, STATE, COPY
            )  # fmt: skip
        else:
            _descend(
                param, first, second, copy, kinds, at, at < count, factor, decay, inside, outside, PARAM, STATE, COPY
            )  # fmt: skip
