"""The accelerator: an OpenCL device whose tensors live in host memory, so that it is the host but for what is below."""

from __future__ import annotations

from dataclasses import replace
from threading import local

from opforge.accelerator import Capabilities, CPUAccelerator, Target

from .devices import Device, devices, missing

TARGET = Target("opencl")


class OpenCLAccelerator(CPUAccelerator):
    """Every OpenCL device of this machine, numbered over all drivers. Ops return when the device has finished."""

    name = "opencl"
    interface_version = 1

    def __init__(self) -> None:
        super().__init__()
        self._current = local()
        self._told: Capabilities | None = None

    def op_builder_dir(self) -> str:
        """Give the package that holds the table of builders."""
        return "opforge_opencl.builders"

    def target(self) -> Target:
        """Give what ops are built for: one library for all devices, since each driver compiles the kernels itself."""
        return TARGET

    # devices

    def is_available(self) -> bool:
        """Whether an OpenCL driver is installed."""
        return not missing()

    def unavailable_reason(self) -> str:
        """Why `is_available` says no."""
        return missing()

    def device_count(self) -> int:
        """Give the number of devices of all drivers."""
        return len(devices())

    def current_device(self) -> int:
        """Give the number set in this thread, else 0."""
        number: int = getattr(self._current, "device", 0)
        return number

    def set_device(self, device_index: int) -> None:
        """Make the device the current one in the calling thread. IndexError where there is none of that number."""
        self._device(device_index)
        self._current.device = int(device_index)

    def _device(self, device_index: int | None) -> Device:
        number = self.current_device() if device_index is None else int(device_index)
        if not 0 <= number < len(devices()):
            raise IndexError(f"there is no OpenCL device {number}: this machine has {len(devices())}, counted from 0")
        return devices()[number]

    def visible_devices_envs(self) -> list[str]:
        """Give nothing: OpenCL knows no variable that all drivers heed."""
        return []

    def export_envs(self) -> list[str]:
        """Give the beginnings of the variables that choose and tune drivers."""
        return ["OCL_", "OPENCL_", "POCL_", "OMP_", "GLOO_"]

    # what a device is and can do

    def total_memory(self, device_index: int | None = None) -> int:
        """Give the bytes of the device's global memory."""
        return self._device(device_index).memory

    def mem_get_info(self, device_index: int | None = None) -> tuple[int, int]:
        """Give (free, total) bytes: what is free on the host, where tensors live, but no more than the device has."""
        total = self.total_memory(device_index)
        return min(super().mem_get_info()[0], total), total

    def is_fp16_supported(self) -> bool:
        """Whether the current device's kernels may use `half`."""
        return "cl_khr_fp16" in self._device(None).extensions

    def is_bf16_supported(self) -> bool:
        """Whether kernels may use bfloat16: OpenCL C has no such type."""
        return False

    def is_fp64_supported(self) -> bool:
        """Whether the current device's kernels may use `double`."""
        return "cl_khr_fp64" in self._device(None).extensions

    def capabilities(self) -> Capabilities:
        """Give what the device can do, as one frozen value. Found once."""
        if self._told is None:
            model = self._device(None).name
            self._told = replace(super().capabilities(), device=self.name, device_name=model, arch="", simd=())
        return self._told
