"""The accelerator that a tensor's device belongs to."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from opforge.errors import OpforgeError

from .registry import make_accelerator
from .select import get_accelerator

if TYPE_CHECKING:
    from .interface.accelerator import Accelerator


def accelerator_of(device_type: str) -> Accelerator:
    """Returns the accelerator for tensors on `device_type`, a type of `torch.device` such as `cuda`.

    It is the accelerator in use if that one is for the type, otherwise opforge's own of that name: a kernel runs on the
    device of its tensors, whatever OPFORGE_ACCELERATOR says. Raises UnknownAcceleratorError if there is none.
    """
    try:
        accelerator = get_accelerator()
    except OpforgeError:  # the setting names one that cannot be used; the tensors exist nevertheless
        return _accelerator_named(device_type)
    return accelerator if accelerator.torch_device == device_type else _accelerator_named(device_type)


@cache
def _accelerator_named(name: str) -> Accelerator:
    return make_accelerator(name, "the program")
