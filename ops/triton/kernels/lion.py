"""Lion over many tensors in one launch. For the formula see `opforge.ops.reference.lion`."""

import triton
import triton.language as tl

from .optimizer_table import address, read, row_of, write
from .rules import average, descend, number


@triton.jit
def _block(
    param, grad, first, copy, kinds, at, here, sign, weight1, factor1, weight2, factor2, amount, lr,
    PARAM: tl.constexpr, GRAD: tl.constexpr, STATE: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    p, m = read(param, kinds, 0, at, here, PARAM), read(first, kinds, 2, at, here, STATE)
    g = read(grad, kinds, 1, at, here, GRAD) * sign
    direction = average(m, g, weight1, factor1)
    # A direction of NaN must stay NaN.
    step = tl.where(direction > 0, lr, tl.where(direction < 0, -lr, tl.where(direction == 0, 0.0, direction)))
    p = descend(p, step, amount)
    write(param, kinds, 0, at, p, here, PARAM)
    write(first, kinds, 2, at, average(m, g, weight2, factor2), here, STATE)
    write(copy, kinds, 3, at, p, here, COPY)


@triton.jit
def update(
    table,
    noop,
    lr_at,
    scale_at,
    sign,
    weight1,
    factor1,
    weight2,
    factor2,
    decay,
    lr,
    PARAM: tl.constexpr,
    GRAD: tl.constexpr,
    STATE: tl.constexpr,
    COPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Updates each row (param, grad, exp_avg, copy) in one program. `sign` is -1 to maximize.

    The number at `lr_at`, if that is not 0, is the learning rate instead of `lr`. The number at `scale_at`, if that is
    not 0, divides the gradients.
    """
    row, kinds, count, _tensor = row_of(table, noop, 7)
    param, grad = address(row, 0, PARAM), address(row, 1, GRAD)
    first, copy = address(row, 2, STATE), address(row, 3, COPY)
    sign = sign / number(scale_at, 1.0)
    lr = number(lr_at, lr)
    amount = lr * decay
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        if start + BLOCK <= count:  # a mask would prevent wide loads
            _block(
                param, grad, first, copy, kinds, at, None,
                sign, weight1, factor1, weight2, factor2, amount, lr, PARAM, GRAD, STATE, COPY,
            )  # fmt: skip
        else:
            _block(
                param, grad, first, copy, kinds, at, at < count,
                sign, weight1, factor1, weight2, factor2, amount, lr, PARAM, GRAD, STATE, COPY,
            )  # fmt: skip
