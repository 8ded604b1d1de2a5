"""The state of a tensor's device that launches need: its current stream, capture, multiprocessors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from opforge.accelerator.by_device import accelerator_of


def gpu_is_available() -> bool:
    """Returns whether torch can use a GPU here."""
    return accelerator_of("cuda").is_available()


def raw_stream(device: torch.device) -> int:
    """Returns the driver's handle of the device's current stream; 0 on the CPU."""
    return _raw_stream_function(device.type)(device.index)


@cache
def _raw_stream_function(device_type: str) -> Callable[[int], int]:
    return accelerator_of(device_type).raw_stream_function()


def is_capturing(device: torch.device) -> bool:
    """Returns whether the device's current stream captures launches in a graph, in place of running them."""
    if device.type == "meta":
        return False
    accelerator = accelerator_of(device.type)
    return not accelerator.is_synchronized_device() and accelerator.is_current_stream_capturing()


def check_copies(device: torch.device, what: str) -> None:
    """Raises RuntimeError if a graph is captured on the device: nothing can be copied there. `what` would be copied."""
    if is_capturing(device):
        raise RuntimeError(
            f"{what} are not on the device yet, and nothing can be copied there while a graph is captured: run one step"
            " with the same tensors first"
        )


def on_device(tensor: Tensor, device: torch.device, what: str) -> Tensor:
    """Returns a tensor of the host on a device. Raises RuntimeError, as `check_copies`, if it is not there yet."""
    if tensor.device != device and not torch.compiler.is_compiling():
        check_copies(device, what)
    return tensor.to(device)


def pin_memory(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns a page-locked copy of a tensor of the host, from which the device copies; for the CPU, the tensor."""
    return accelerator_of(device.type).pin_memory(tensor)


def record_stream(tensor: Tensor) -> None:
    """Keeps the tensor's memory from being reused before the work that its device's current stream has queued ends."""
    tensor.record_stream(accelerator_of(tensor.device.type).current_stream(tensor.device.index))


@cache
def multiprocessor_count(device: torch.device) -> int:
    """Returns the number of multiprocessors of a GPU; 1 for the CPU."""
    return accelerator_of(device.type).multiprocessor_count(device.index)
