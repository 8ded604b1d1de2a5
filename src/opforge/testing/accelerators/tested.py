"""The accelerator that a contract tests."""

from __future__ import annotations

import torch

from opforge.accelerator import Accelerator
from opforge.foundation.lazy import cached_property
from opforge.testing.contract import Contract, skip


class AcceleratorTests(Contract):
    """A contract of the accelerator that `make_accelerator` returns."""

    torch_has_device = True
    """Whether this torch knows the device's type, so that `torch.device(name)` works."""

    def make_accelerator(self) -> Accelerator:
        """Returns a new accelerator. Override it."""
        raise NotImplementedError(f"{type(self).__name__} must override make_accelerator")

    @cached_property
    def accelerator(self) -> Accelerator:
        """The accelerator of this test. The test is skipped if its device cannot be used."""
        accelerator = self.make_accelerator()
        if not accelerator.is_available():
            skip(f"{accelerator.name}: {accelerator.unavailable_reason()}")
        return accelerator

    @property
    def tensor_device(self) -> torch.device:
        """The device for the tests' tensors."""
        return torch.device(self.accelerator.current_device_name())

    def device_names(self, index: int) -> list[object]:
        """Returns the ways to name a device, except its number."""
        kind = self.accelerator.torch_device
        names: list[object] = [str(index), f"{kind}:{index}"]
        return [*names, torch.device(kind, index)] if self.torch_has_device else names
