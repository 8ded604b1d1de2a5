"""Layer norm and RMS norm along the rows of a matrix, forward and backward.

A row that fits a block is read once (ONCE). A longer row is read twice, the second time usually from the cache. Each
program sums the gradients of weight and bias over all its rows in registers, and writes one row of partial sums. There
are no atomics, so the same inputs give the same bits. The approximate root takes denormals for 0: it is exact here.
"""

import triton
import triton.language as tl


@triton.jit
def mean_from(first, value, here, count):
    """Returns the mean of the values that are `here`. Of `count` equal values it is `first`, without a rounding.

    A mean that is one rounding off would give a row of equal values up to the whole of the weight.
    """
    return first + tl.sum(tl.where(here, value - first, 0.0), 0) / count


@triton.jit
def _moments(x, columns, CENTRED: tl.constexpr, BLOCK: tl.constexpr):
    """Returns the mean of a row (0 unless CENTRED) and the sum of squares about it. Reads the row once, by blocks."""
    # Subtracting the first block's mean, which is near the row's compared with the row's deviation, avoids the
    # cancellation of large numbers below. Each thread has its own sums, so that no thread waits in the loop.
    pivot = 0.0
    if CENTRED:
        first = tl.arange(0, BLOCK)
        value = tl.load(x + first, mask=first < columns, other=0.0).to(tl.float32)
        pivot = mean_from(tl.load(x).to(tl.float32), value, first < columns, tl.minimum(columns, BLOCK))
    sums = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        here = at < columns
        value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
        if CENTRED:
            value = tl.where(here, value - pivot, 0.0)
            sums += value
        squares += value * value
    total = tl.sum(squares, 0)
    if CENTRED:
        difference = tl.sum(sums, 0) / columns
        spread = total - difference * difference * columns
        return pivot + difference, tl.where(total == float("inf"), total, spread)  # inf - inf would be NaN
    else:
        return 0.0, total


@triton.jit
def _scaled(x, mean, rstd, weight, bias, here, CENTRED: tl.constexpr):
    value = (x - mean) * rstd if CENTRED else x * rstd
    value = value * tl.load(weight, mask=here, other=0.0).to(tl.float32)
    if CENTRED:
        value += tl.load(bias, mask=here, other=0.0).to(tl.float32)
    return value


@triton.jit
def forward(
    x,
    weight,
    bias,
    y,
    means,
    rstds,
    columns,
    x_stride,
    y_stride,
    eps,
    CENTRED: tl.constexpr,
    ONCE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Computes y = (x - mean) * rstd * weight + bias if CENTRED, x * rstd * weight otherwise. One program per row."""
    row = tl.program_id(0).to(tl.int64)
    x += row * x_stride
    y += row * y_stride
    if ONCE:
        at = tl.arange(0, BLOCK)
        here = at < columns
        value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
        mean = 0.0
        if CENTRED:
            mean = mean_from(tl.load(x).to(tl.float32), value, here, columns)
            centred = tl.where(here, value - mean, 0.0)
            squares = tl.sum(centred * centred, 0)
        else:
            squares = tl.sum(value * value, 0)
        rstd = 1.0 / tl.sqrt_rn(squares / columns + eps)
        tl.store(
            y + at, _scaled(value, mean, rstd, weight + at, bias + at if CENTRED else bias, here, CENTRED), mask=here
        )
    else:
        mean, squares = _moments(x, columns, CENTRED, BLOCK)
        rstd = 1.0 / tl.sqrt_rn(squares / columns + eps)
        last = (columns - 1) // BLOCK * BLOCK
        for before in range(0, columns, BLOCK):  # backwards: the data read last is most likely in the cache
            at = last - before + tl.arange(0, BLOCK)
            here = at < columns
            value = tl.load(x + at, mask=here, other=0.0, eviction_policy="evict_first").to(tl.float32)
            scaled = _scaled(value, mean, rstd, weight + at, bias + at if CENTRED else bias, here, CENTRED)
            tl.store(y + at, scaled, mask=here, eviction_policy="evict_first")
    tl.store(rstds + row, rstd)
    if CENTRED:
        tl.store(means + row, mean)


@triton.jit
def _normal(x, dy, weight, mean, rstd, CENTRED: tl.constexpr):
    """Returns the normalized row and its gradient."""
    normal = (x - mean) * rstd if CENTRED else x * rstd
    return normal, dy * weight


@triton.jit
def backward_sums(
    dy,
    x,
    weight,
    means,
    rstds,
    sums,
    columns,
    dy_stride,
    x_stride,
    CENTRED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Computes the sums that `backward` needs of long rows, one program per row.

    It writes the means of gradient * normal and of gradient to `sums` [rows, 2].
    """
    row = tl.program_id(0).to(tl.int64)
    rstd = tl.load(rstds + row)
    mean = tl.load(means + row) if CENTRED else 0.0
    products = tl.zeros((BLOCK,), tl.float32)
    gradients = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        here = at < columns
        slope = tl.load(dy + row * dy_stride + at, mask=here, other=0.0).to(tl.float32)
        value = tl.load(x + row * x_stride + at, mask=here, other=0.0).to(tl.float32)
        w = tl.load(weight + at, mask=here, other=0.0).to(tl.float32)
        normal, gradient = _normal(value, slope, w, mean, rstd, CENTRED)
        products += gradient * normal
        gradients += gradient
    tl.store(sums + row * 2, tl.sum(products, 0) / columns)
    if CENTRED:
        tl.store(sums + row * 2 + 1, tl.sum(gradients, 0) / columns)


@triton.jit
def backward(
    dy,
    x,
    weight,
    means,
    rstds,
    sums,
    dx,
    dweights,
    dbiases,
    rows,
    columns,
    dy_stride,
    x_stride,
    dx_stride,
    CENTRED: tl.constexpr,
    ONCE: tl.constexpr,
    AGAIN: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Computes dx. Each of n programs takes every n-th row, or a block of it, and writes a row of dweights and dbiases.

    If ONCE, a row fits the block. Otherwise `backward_sums` has written the means over each row to `sums`. If AGAIN, a
    row fits the block but not the registers: it is read again after its sums are computed, while it is in the cache.
    STAGES - 1 rows are on their way while one is computed.
    """
    program = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = at < columns
    if not AGAIN:
        w = tl.load(weight + at, mask=here, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK,), tl.float32)
    db = tl.zeros((BLOCK,), tl.float32)
    for row in tl.range(program, rows, tl.num_programs(0), num_stages=STAGES):
        slope = tl.load(dy + row * dy_stride + at, mask=here, other=0.0).to(tl.float32)
        value = tl.load(x + row * x_stride + at, mask=here, other=0.0).to(tl.float32)
        if AGAIN:
            w = tl.load(weight + at, mask=here, other=0.0).to(tl.float32)
        rstd = tl.load(rstds + row)
        mean = tl.load(means + row) if CENTRED else 0.0
        normal, gradient = _normal(value, slope, w, mean, rstd, CENTRED)
        product_mean = tl.sum(gradient * normal, 0) / columns if ONCE else tl.load(sums + row * 2)
        gradient_mean = 0.0
        if CENTRED:
            gradient_mean = tl.sum(gradient, 0) / columns if ONCE else tl.load(sums + row * 2 + 1)
            db += slope
        if AGAIN:
            # With the same policy the compiler would merge these loads with those above, and keep the values.
            slope = tl.load(dy + row * dy_stride + at, mask=here, other=0.0, eviction_policy="evict_first")
            value = tl.load(x + row * x_stride + at, mask=here, other=0.0, eviction_policy="evict_first")
            w = tl.load(weight + at, mask=here, other=0.0, eviction_policy="evict_last").to(tl.float32)
            slope, value = slope.to(tl.float32), value.to(tl.float32)
            normal, gradient = _normal(value, slope, w, mean, rstd, CENTRED)
        result = gradient - normal * product_mean - gradient_mean
        dw += slope * normal
        tl.store(dx + row * dx_stride + at, result * rstd, mask=here)
    tl.store(dweights + program * columns + at, dw, mask=here)
    if CENTRED:
        tl.store(dbiases + program * columns + at, db, mask=here)
