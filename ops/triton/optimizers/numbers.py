"""The numbers of an optimizer's step as its kernels take them: computed here in float64, or read on the device."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def checked_flag(op: str, noop_flag: Tensor, device: torch.device) -> Tensor:
    """Returns the flag's bits as int32; a flag that is not zero stops the update. Raises ValueError."""
    _check(op, "noop_flag", noop_flag, device, (torch.int32, torch.float32))
    return noop_flag.view(torch.int32)


def address_of(op: str, name: str, number: Tensor | None, device: torch.device) -> int:
    """Returns the address of a float32 number on the device, 0 for None. Raises ValueError."""
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


def average_weights(beta: float) -> tuple[float, float]:
    """Returns the weights of a running average, as `average` in kernels/rules.py takes them."""
    return 1.0 - beta, beta - 1.0 if beta > 0.5 else beta


def step_rates(
    op: str, lr: float, beta1: float, beta2: float, step: int, bias_correction: bool, on_device: bool
) -> tuple[tuple[float, float], tuple[float, float, float, float]]:
    """Returns a step's rates as the kernels of Adam and LAMB take them.

    Raises ValueError if `step` is less than 1, unless the step is counted on the device.

    Returns:
        (lr * root / (1 - beta1^step), root), where root is sqrt(1 - beta2^step); and what the kernel needs to compute
        both if the step is counted on the device: (lr, step, log(beta1), log(beta2)).
    """
    if step < 1 and not on_device:
        raise ValueError(f"{op}: step is {step}, expected 1 at the first step: count it before the call")
    correction1 = 1.0 - beta1**step if bias_correction and step > 0 else 1.0
    root = math.sqrt(1.0 - beta2**step) if bias_correction and step > 0 else 1.0
    # log(0) for a beta of 0, and for no correction: the kernel's 1 - 0^step is 1.
    logs = [math.log(beta) if bias_correction and beta > 0 else -math.inf for beta in (beta1, beta2)]
    return (lr * root / correction1 if correction1 else math.inf, root), (lr, float(step), logs[0], logs[1])
