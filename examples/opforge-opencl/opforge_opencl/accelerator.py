"""The accelerator: an OpenCL device whose tensors are in host memory. It is the host's except for what is below."""

from __future__ import annotations

from dataclasses import replace
from threading import local
from typing import TYPE_CHECKING

from opforge.accelerator import Capabilities, CPUAccelerator, Target

from .devices import Device, devices, driver_problem

if TYPE_CHECKING:
    from torch.types import Device as TorchDevice

TARGET = Target("opencl")


class OpenCLAccelerator(CPUAccelerator):
    """Every OpenCL device of this machine, numbered over all drivers. Ops return when the device has finished."""

    name = "opencl"
    interface_version = 1
    index_is_rank = False  # the host's number is that of a process

    def __init__(self) -> None:
        super().__init__()
        self._current = local()
        self._device_capabilities: Capabilities | None = None

    def op_builder_dir(self) -> str:
        """Returns the package that holds the table of builders."""
        return "opforge_opencl.builders"

    def target(self) -> Target:
        """Returns the target of ops: one for all devices, because each driver compiles the kernels itself."""
        return TARGET

    # devices

    def is_available(self) -> bool:
        """Returns whether an OpenCL driver is installed."""
        return driver_problem() is None

    def unavailable_reason(self) -> str:
        """Returns why `is_available` returns False. Empty if it returns True."""
        return driver_problem() or ""

    def device_count(self) -> int:
        """Returns the number of devices of all drivers."""
        return len(devices())

    def current_device(self) -> int:
        """Returns the number that was set in this thread. 0 if there is none."""
        number: int = getattr(self._current, "device", 0)
        return number

    def set_device(self, device_index: TorchDevice) -> None:
        """Makes a device the current one of the calling thread. A torch.device without a number changes nothing."""
        index = self.index_of(device_index)
        if index is not None:
            self._current.device = index

    def _device(self, device_index: TorchDevice) -> Device:
        index = self.index_of(device_index)
        return devices()[self.current_device() if index is None else index]

    def visible_devices_envs(self) -> list[str]:
        """Returns an empty list: OpenCL has no variable that all drivers respect."""
        return []

    def export_envs(self) -> list[str]:
        """Returns the prefixes of the variables that select and tune drivers."""
        return ["OCL_", "OPENCL_", "POCL_", "OMP_", "GLOO_"]

    # what a device is and can do

    def total_memory(self, device_index: TorchDevice = None) -> int:
        """Returns the bytes of the device's global memory."""
        return self._device(device_index).memory

    def mem_get_info(self, device_index: TorchDevice = None) -> tuple[int, int]:
        """Returns (free, total) bytes. Tensors are in host memory, so free is the host's, but at most the total."""
        total = self.total_memory(device_index)
        return min(super().mem_get_info()[0], total), total

    def is_fp16_supported(self) -> bool:
        """Returns whether the current device's kernels may use `half`."""
        return "cl_khr_fp16" in self._device(None).extensions

    def is_bf16_supported(self) -> bool:
        """Returns False: OpenCL C has no bfloat16."""
        return False

    def is_fp64_supported(self) -> bool:
        """Returns whether the current device's kernels may use `double`."""
        return "cl_khr_fp64" in self._device(None).extensions

    def capabilities(self) -> Capabilities:
        """Returns what the device can do, as one frozen value. It is computed once."""
        if self._device_capabilities is None:
            device_name = self._device(None).name
            host = super().capabilities()
            self._device_capabilities = replace(host, device=self.name, device_name=device_name, arch="", simd=())
        return self._device_capabilities
