"""A step's numbers as the optimizers' kernels take them: computed in float64 here, or read on the device there."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def flag(op: str, noop_flag: Tensor, device: torch.device) -> Tensor:
    """The flag as int32: not zero, as an int32 or a float32, stops the update. Raises ValueError."""
    _check(op, "noop_flag", noop_flag, device, (torch.int32, torch.float32))
    return noop_flag.view(torch.int32)


def address(op: str, name: str, number: Tensor | None, device: torch.device) -> int:
    """Where a float32 number lies on the device, 0 for None. Raises ValueError."""
    if number is None:
        return 0
    _check(op, name, number, device, (torch.float32,))
    return number.data_ptr()


def _check(op: str, name: str, number: Tensor, device: torch.device, dtypes: tuple[torch.dtype, ...]) -> None:
    if number.numel() != 1 or number.dtype not in dtypes or number.device != device:
        raise ValueError(
            f"{op}: {name} has {number.numel()} elements and is {number.dtype} on {number.device}, expected one of "
            f"{' or '.join(map(str, dtypes))} on {device}, where the parameters are"
        )


def moment(beta: float) -> tuple[float, float]:
    """The weights of a running average; see kernels/rules.py."""
    return 1.0 - beta, beta - 1.0 if beta > 0.5 else beta


def rate(
    op: str, lr: float, beta1: float, beta2: float, step: int, bias_correction: bool, on_device: bool
) -> tuple[tuple[float, float], tuple[float, float, float, float]]:
    """lr * root / (1 - beta1^step) and the root, sqrt(1 - beta2^step); and what the kernel makes them of by itself.

    Raises ValueError where the step is neither 1 or more nor on the device.
    """
    if step < 1 and not on_device:
        raise ValueError(f"{op}: step is {step}, expected 1 at the first step: count it before the call")
    correction1 = 1.0 - beta1**step if bias_correction and step > 0 else 1.0
    root = math.sqrt(1.0 - beta2**step) if bias_correction and step > 0 else 1.0
    # Of no correction, and of a beta of 0, the logarithm is that of 0: 1 - 0^step is 1.
    logs = [math.log(beta) if bias_correction and beta > 0 else -math.inf for beta in (beta1, beta2)]
    return (lr * root / correction1 if correction1 else math.inf, root), (lr, float(step), logs[0], logs[1])
