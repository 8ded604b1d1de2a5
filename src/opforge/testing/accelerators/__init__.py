"""The contract of accelerators."""

from __future__ import annotations

from .costs import CostTests
from .devices import DeviceTests
from .interface import InterfaceTests
from .memory import MemoryTests
from .streams import StreamTests


class AcceleratorContract(InterfaceTests, DeviceTests, MemoryTests, StreamTests, CostTests):
    """The guarantees of every accelerator, as tests.

    It is tested on its own device, and skipped where that cannot be used::

        class TestAcme(AcceleratorContract):
            def make_accelerator(self):
                return AcmeAccelerator()

    Override `tensor_device` if the device is not where the accelerator's tensors are.
    """


__all__ = ["AcceleratorContract"]
