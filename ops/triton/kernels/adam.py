"""Adam and AdamW over many tensors in one launch. For the formula see `opforge.ops.reference.adam`."""

import triton
import triton.language as tl

from .optimizer_table import address, read, row_of, write
from .rules import average, average_square, descend, number, rate_and_root


@triton.jit
def _block(
    param, grad, first, second, copy, kinds, at, here, sign, l2, weight1, factor1, weight2, factor2, amount, rate, eps,
    PARAM: tl.constexpr, GRAD: tl.constexpr, STATE: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    p = read(param, kinds, 0, at, here, PARAM)
    g = tl.fma(l2, tl.where(l2 != 0.0, p, 0.0), read(grad, kinds, 1, at, here, GRAD) * sign)
    m = average(read(first, kinds, 2, at, here, STATE), g, weight1, factor1)
    v = average_square(read(second, kinds, 3, at, here, STATE), g, weight2, factor2)
    p = descend(p, tl.div_rn(rate * m, tl.sqrt_rn(v) + eps), amount)
    write(param, kinds, 0, at, p, here, PARAM)
    write(first, kinds, 2, at, m, here, STATE)
    write(second, kinds, 3, at, v, here, STATE)
    write(copy, kinds, 4, at, p, here, COPY)


@triton.jit
def update(
    table,
    noop,
    lr_at,
    step_at,
    scale_at,
    sign,
    l2,
    weight1,
    factor1,
    weight2,
    factor2,
    decay,
    rate,
    root,
    eps,
    lr,
    step,
    log_beta1,
    log_beta2,
    PARAM: tl.constexpr,
    GRAD: tl.constexpr,
    STATE: tl.constexpr,
    COPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Updates each row (param, grad, exp_avg, exp_avg_sq, copy) in one program.

    `sign` is -1 to maximize. `l2` is the weight decay of Adam, `decay` that of AdamW. `root` is sqrt(1 - beta2^t), and
    `rate` is lr * root / (1 - beta1^t); they are computed here if `lr_at` or `step_at` is the address of a number. The
    number at `scale_at`, if that is not 0, divides the gradients.
    """
    row, kinds, count, _tensor = row_of(table, noop, 8)
    param, grad = address(row, 0, PARAM), address(row, 1, GRAD)
    first, second, copy = address(row, 2, STATE), address(row, 3, STATE), address(row, 4, COPY)
    sign = sign / number(scale_at, 1.0)
    amount = number(lr_at, lr) * decay
    rate, root = rate_and_root(lr_at, step_at, lr, step, log_beta1, log_beta2, rate, root)
    eps *= root
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        if start + BLOCK <= count:  # a mask would prevent wide loads
            _block(
                param, grad, first, second, copy, kinds, at, None,
                sign, l2, weight1, factor1, weight2, factor2, amount, rate, eps, PARAM, GRAD, STATE, COPY,
            )  # fmt: skip
        else:
            _block(
                param, grad, first, second, copy, kinds, at, at < count,
                sign, l2, weight1, factor1, weight2, factor2, amount, rate, eps, PARAM, GRAD, STATE, COPY,
            )  # fmt: skip
