"""Layer norm and RMS norm along the rows of a matrix, forward and backward.

A row that fits a block is read once (ONCE). A longer one is read twice, the second time from the cache as a rule. The
gradients of weight and bias are kept in registers by each program over all of its rows, and written as one row of
partial sums a program: no atomics, so the same inputs give the same bits.
"""

import triton
import triton.language as tl


@triton.jit
def _moments(x, columns, CENTRED: tl.constexpr, BLOCK: tl.constexpr):
    """The mean (0 unless CENTRED) and the sum of squares about it, of one row, read once, block by block."""
    # The first block's mean is near the row's, as far as the row's deviation goes: nothing large cancels below. Each
    # thread keeps sums of its own, so that none waits for the others in the loop.
    pivot = 0.0
    if CENTRED:
        first = tl.arange(0, BLOCK)
        value = tl.load(x + first, mask=first < columns, other=0.0).to(tl.float32)
        pivot = tl.sum(value, 0) / tl.minimum(columns, BLOCK)
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
        apart = tl.sum(sums, 0) / columns
        return pivot + apart, total - apart * apart * columns
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
    """One program a row: y = (x - mean) * rstd * weight + bias if CENTRED, x * rstd * weight otherwise."""
    row = tl.program_id(0).to(tl.int64)
    x += row * x_stride
    y += row * y_stride
    if ONCE:
        at = tl.arange(0, BLOCK)
        here = at < columns
        value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
        mean = 0.0
        if CENTRED:
            mean = tl.sum(value, 0) / columns
            about = tl.where(here, value - mean, 0.0)
            squares = tl.sum(about * about, 0)
        else:
            squares = tl.sum(value * value, 0)
        rstd = 1.0 / tl.sqrt(squares / columns + eps)
        tl.store(
            y + at, _scaled(value, mean, rstd, weight + at, bias + at if CENTRED else bias, here, CENTRED), mask=here
        )
    else:
        mean, squares = _moments(x, columns, CENTRED, BLOCK)
        rstd = 1.0 / tl.sqrt(squares / columns + eps)
        last = (columns - 1) // BLOCK * BLOCK
        for before in range(0, columns, BLOCK):  # backwards: what was read last is the likeliest to be in the cache
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
    """The normalised row, and its gradient."""
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
    """Long rows, before `backward`: one program a row, which writes the means of gradient * normal and of gradient to
    `sums` [rows, 2]."""
    row = tl.program_id(0).to(tl.int64)
    rstd = tl.load(rstds + row)
    mean = tl.load(means + row) if CENTRED else 0.0
    along = tl.zeros((BLOCK,), tl.float32)
    plain = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        here = at < columns
        given = tl.load(dy + row * dy_stride + at, mask=here, other=0.0).to(tl.float32)
        value = tl.load(x + row * x_stride + at, mask=here, other=0.0).to(tl.float32)
        w = tl.load(weight + at, mask=here, other=0.0).to(tl.float32)
        normal, gradient = _normal(value, given, w, mean, rstd, CENTRED)
        along += gradient * normal
        plain += gradient
    tl.store(sums + row * 2, tl.sum(along, 0) / columns)
    if CENTRED:
        tl.store(sums + row * 2 + 1, tl.sum(plain, 0) / columns)


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
    BLOCK: tl.constexpr,
):
    """Each program takes every n-th row, or one block of it, and writes its sums to its row of dweights and dbiases.

    Unless ONCE, where a row fits the block, `backward_sums` has written the means over each row to `sums`. AGAIN, a
    row that fits the block but not the registers is read again after its sums are known, while it is in the cache."""
    program = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = at < columns
    if not AGAIN:
        w = tl.load(weight + at, mask=here, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK,), tl.float32)
    db = tl.zeros((BLOCK,), tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        given = tl.load(dy + row * dy_stride + at, mask=here, other=0.0).to(tl.float32)
        value = tl.load(x + row * x_stride + at, mask=here, other=0.0).to(tl.float32)
        if AGAIN:
            w = tl.load(weight + at, mask=here, other=0.0).to(tl.float32)
        rstd = tl.load(rstds + row)
        mean = tl.load(means + row) if CENTRED else 0.0
        normal, gradient = _normal(value, given, w, mean, rstd, CENTRED)
        along = tl.sum(gradient * normal, 0) / columns if ONCE else tl.load(sums + row * 2)
        plain = 0.0
        if CENTRED:
            plain = tl.sum(gradient, 0) / columns if ONCE else tl.load(sums + row * 2 + 1)
            db += given
        if AGAIN:
            # Another policy keeps the compiler from taking these for the loads above.
            given = tl.load(dy + row * dy_stride + at, mask=here, other=0.0, eviction_policy="evict_first")
            value = tl.load(x + row * x_stride + at, mask=here, other=0.0, eviction_policy="evict_first")
            w = tl.load(weight + at, mask=here, other=0.0, eviction_policy="evict_last").to(tl.float32)
            given, value = given.to(tl.float32), value.to(tl.float32)
            normal, gradient = _normal(value, given, w, mean, rstd, CENTRED)
        result = gradient - normal * along - plain
        dw += given * normal
        tl.store(dx + row * dx_stride + at, result * rstd, mask=here)
    tl.store(dweights + program * columns + at, dw, mask=here)
    if CENTRED:
        tl.store(dbiases + program * columns + at, db, mask=here)
