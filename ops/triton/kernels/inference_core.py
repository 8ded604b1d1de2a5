"""Norms with a residual, and activations with a bias, each in one pass: DeepSpeed's core ops for inference.

Rows have no gaps. An output may be the memory of an input of the same size.
"""

import triton
import triton.language as tl

from .norm import mean_from


@triton.jit
def _activated(x, kind):
    """Returns GELU in the form with tanh (0 and 3), ReLU (1 and 4), SiLU (2 and 5) or x itself (6)."""
    if (kind == 0) | (kind == 3):
        # x * (1 + tanh(u)) / 2 is x / (1 + e^(-2u)).
        x = x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    elif (kind == 1) | (kind == 4):
        x = tl.where(x < 0.0, 0.0, x)
    elif (kind == 2) | (kind == 5):
        x = x / (1.0 + tl.exp(-x))
    return x


@triton.jit
def bias_activation(x, bias, count, columns, kind, BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """Computes x = f(x + bias) in place. One program per block."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    here = lane < count - start
    value = tl.load(x + start + lane, mask=here, other=0.0).to(tl.float32)
    if BIAS:
        column = ((start % columns).to(tl.int32) + lane) % columns
        value += tl.load(bias + column, mask=here, other=0.0).to(tl.float32)
    tl.store(x + start + lane, _activated(value, kind), mask=here)


@triton.jit
def gated_activation(out, x, bias, count, columns, kind, BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """Computes out[k] = f(x[2k]) * x[2k + 1]: gates and values alternate. One program per block of `out`."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, 2 * BLOCK)
    here = lane < 2 * (count - start)
    pairs = tl.load(x + 2 * start + lane, mask=here, other=0.0).to(tl.float32)
    if BIAS:
        column = ((2 * start % columns).to(tl.int32) + lane) % columns
        pairs += tl.load(bias + column, mask=here, other=0.0).to(tl.float32)
    gate, value = tl.split(tl.reshape(pairs, (BLOCK, 2)))
    at = tl.arange(0, BLOCK)
    tl.store(out + start + at, _activated(gate, kind) * value, mask=at < count - start)


@triton.jit
def _summed(x, residual, at, here, RESIDUAL: tl.constexpr):
    value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
    if RESIDUAL:
        value += tl.load(residual + at, mask=here, other=0.0).to(tl.float32)
    return value


@triton.jit
def _write(out, total, gamma, beta, value, mean, scale, at, here, TOTAL: tl.constexpr, CENTRED: tl.constexpr):
    if TOTAL:
        tl.store(total + at, value, mask=here)
    result = (value - mean) * scale * tl.load(gamma + at, mask=here, other=0.0).to(tl.float32)
    if CENTRED:
        result += tl.load(beta + at, mask=here, other=0.0).to(tl.float32)
    tl.store(out + at, result, mask=here)


@triton.jit
def norm(
    out, total, x, residual, gamma, beta, columns, eps,
    CENTRED: tl.constexpr, RESIDUAL: tl.constexpr, TOTAL: tl.constexpr, ONCE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Computes the norm of x + residual, and stores the sum if TOTAL. One program per row; ONCE: it fits a block."""
    row = tl.program_id(0).to(tl.int64) * columns
    out += row
    x += row
    if RESIDUAL:
        residual += row
    if TOTAL:
        total += row
    lane = tl.arange(0, BLOCK)
    value = _summed(x, residual, lane, lane < columns, RESIDUAL)
    mean = 0.0
    if CENTRED:
        first = _summed(x, residual, 0, True, RESIDUAL)
    if ONCE:
        if CENTRED:
            mean = mean_from(first, value, lane < columns, columns)
        distance = tl.where(lane < columns, value - mean, 0.0)
        scale = 1.0 / tl.sqrt_rn(tl.sum(distance * distance, 0) / columns + eps)
        _write(out, total, gamma, beta, value, mean, scale, lane, lane < columns, TOTAL, CENTRED)
    else:
        pivot = 0.0  # near the row's mean, so that squares about it lose little
        if CENTRED:
            pivot = mean_from(first, value, lane < columns, tl.minimum(columns, BLOCK))
        sums = tl.zeros((BLOCK,), tl.float32)
        squares = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, columns, BLOCK):
            at = start + lane
            distance = tl.where(at < columns, _summed(x, residual, at, at < columns, RESIDUAL) - pivot, 0.0)
            sums += distance
            squares += distance * distance
        square = tl.sum(squares, 0) / columns
        if CENTRED:
            difference = tl.sum(sums, 0) / columns
            mean = pivot + difference
            square = tl.where(square == float("inf"), square, square - difference * difference)  # not inf - inf
        scale = 1.0 / tl.sqrt_rn(square + eps)
        for start in range(0, columns, BLOCK):
            at = start + lane
            value = _summed(x, residual, at, at < columns, RESIDUAL)
            _write(out, total, gamma, beta, value, mean, scale, at, at < columns, TOTAL, CENTRED)
