"""The parts of the optimizers' rules: the arithmetic of ops/csrc/include/opforge/rules.h, step by step."""

import triton
import triton.language as tl


@triton.jit
def average(x, y, weight, factor):
    """Returns beta * x + (1 - beta) * y, from the nearer of them, as torch.lerp does.

    `weight` is 1 - beta; `factor` is -weight if beta > 1/2, otherwise beta.
    """
    nearer = factor == -weight  # not weight < 1/2: next to 1/2 it is 1/2 as a float
    return tl.fma(tl.where(nearer, weight, -factor), y - x, tl.where(nearer, x, y))


@triton.jit
def average_square(x, y, weight, factor):
    """Returns beta * x + (1 - beta) * y * y. inf stays inf; the product overflows when torch's does."""
    base = tl.where(factor == -weight, x, 0.0)
    decay = tl.where(tl.abs(base) == float("inf"), 0.0, factor * x)
    return base + tl.fma(weight * y, y, decay)


@triton.jit
def descend(p, step, amount):
    """Returns p - amount * p - step, rounded once at the magnitude of p."""
    # For an infinite p the second form would subtract inf from inf, which is NaN.
    return tl.where(tl.abs(p) == float("inf"), (1.0 - amount) * p - step, p - tl.fma(amount, p, step))


@triton.jit
def number(address, otherwise):
    """Returns the float32 number at an address on the device, or `otherwise` if the address is 0."""
    value = otherwise
    if address != 0:
        value = tl.load(address.to(tl.pointer_type(tl.float32)))
    return value


@triton.jit
def _bias_correction(log_beta, step):
    """Returns 1 - beta^step. If that is small, uses the series of the exponential function to avoid cancellation."""
    x = step * log_beta
    series = 1.0 + x / 12.0
    for n in tl.static_range(11, 1, -1):
        series = 1.0 + series * x / n
    return tl.where(x > -1.0, -x * series, 1.0 - tl.exp(x))


@triton.jit
def rate_and_root(lr_at, step_at, lr, step, log_beta1, log_beta2, rate, root):
    """Returns lr * sqrt(1 - beta2^t) / (1 - beta1^t) and sqrt(1 - beta2^t).

    These are `rate` and `root`, unless lr or t is on the device.
    """
    if (lr_at != 0) | (step_at != 0):
        t = number(step_at, step)
        root = tl.sqrt_rn(_bias_correction(log_beta2, t))
        rate = number(lr_at, lr) * root / _bias_correction(log_beta1, t)
    return rate, root
