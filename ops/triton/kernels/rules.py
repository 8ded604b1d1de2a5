"""What the optimizers' rules are made of: the arithmetic of ops/csrc/include/opforge/rules.h, step by step."""

import triton
import triton.language as tl


@triton.jit
def average(x, y, weight, factor):
    """beta * x + (1 - beta) * y. `weight` is 1 - beta; `factor` beta - 1 where beta > 1/2, and beta elsewhere."""
    return tl.where(weight < 0.5, x, 0.0) + tl.fma(weight, y, factor * x)


@triton.jit
def average_square(x, y, weight, factor):
    """beta * x + (1 - beta) * y * y. inf stays inf; the product overflows where torch's does."""
    base = tl.where(weight < 0.5, x, 0.0)
    decay = tl.where(tl.abs(base) == float("inf"), 0.0, factor * x)
    return base + tl.fma(weight * y, y, decay)


@triton.jit
def descend(p, step, amount):
    """p - amount * p - step, rounded once at the magnitude of p. inf less a part of itself would be NaN."""
    return tl.where(tl.abs(p) == float("inf"), (1.0 - amount) * p - step, p - tl.fma(amount, p, step))


@triton.jit
def number(address, otherwise):
    """The float32 number on the device at an address, or `otherwise` where that is 0."""
    value = otherwise
    if address != 0:
        value = tl.load(address.to(tl.pointer_type(tl.float32)))
    return value


@triton.jit
def _bias_correction(log_beta, step):
    """1 - beta^step without the cancellation: where that is small, by the series of the exponential function."""
    x = step * log_beta
    series = 1.0 + x / 12.0
    for n in tl.static_range(11, 1, -1):
        series = 1.0 + series * x / n
    return tl.where(x > -1.0, -x * series, 1.0 - tl.exp(x))


@triton.jit
def rate_and_root(lr_at, step_at, lr, step, log_beta1, log_beta2, rate, root):
    """lr * sqrt(1 - beta2^t) / (1 - beta1^t), and that square root: as given, unless lr or t are on the device."""
    if (lr_at != 0) | (step_at != 0):
        t = number(step_at, step)
        root = tl.sqrt_rn(_bias_correction(log_beta2, t))
        rate = number(lr_at, lr) * root / _bias_correction(log_beta1, t)
    return rate, root
