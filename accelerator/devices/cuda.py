"""NVIDIA's GPUs through CUDA, and AMD's through ROCm, whose torch uses the same names."""

from __future__ import annotations

import importlib
import logging
from functools import cache
from typing import TYPE_CHECKING

from opforge.accelerator.target import Target
from opforge.accelerator.vendors import nvidia, nvml, rocm
from opforge.accelerator.vendors.host_registration import HostRegistration
from opforge.accelerator.vendors.vendor import Vendor, torch_version
from opforge.foundation import settings
from opforge.foundation.lazy import cached_property

if TYPE_CHECKING:
    from typing import Any

    import torch
    from torch.types import Device

    from opforge.accelerator.target import Target

log = logging.getLogger("opforge")


class CUDAAccelerator(HostRegistration, Vendor):
    """A device is one GPU, or one MIG device. With ROCm the target's device is `hip`; all other names are `cuda`."""

    name = torch_device = runtime_prefix = "cuda"
    package = "torch"
    torch_builds = {"cuda": "CUDA", "hip": "ROCm"}
    range_module = "nvtx"
    _communication_backend = "nccl"

    def _is_rocm(self) -> bool:
        return getattr(torch_version(), "hip", None) is not None

    def _visibility_problem(self) -> str | None:
        return super()._visibility_problem() if self._is_rocm() else None  # for CUDA it is part of the device problem

    def _device_problem(self) -> str | None:
        if self._is_rocm():
            return rocm.device_problem(self.root)
        toolkit = getattr(torch_version(), "cuda", None)
        return nvidia.device_problem(toolkit, self.root) if toolkit else None

    def visible_devices_envs(self) -> list[str]:
        """Returns CUDA_VISIBLE_DEVICES, with ROCm HIP_VISIBLE_DEVICES before it."""
        return ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"] if self._is_rocm() else ["CUDA_VISIBLE_DEVICES"]

    def export_envs(self) -> list[str]:
        """Returns the prefixes of NCCL's variables, with ROCm also those of RCCL and the HSA runtime."""
        return ["NCCL_", "TORCH_NCCL_", *(["RCCL_", "HSA_"] if self._is_rocm() else [])]

    # architectures

    def _find_target(self) -> Target:
        if self._is_rocm():
            properties = self._device_module().get_device_properties
            # gcnArchName is the processor and its features: gfx90a:sramecc+:xnack-
            names = {properties(index).gcnArchName.partition(":")[0] for index in range(self.device_count())}
            return Target("hip", tuple(sorted(names)))
        return Target("cuda", tuple(f"sm_{major}{minor}" for major, minor in sorted(set(self._all_capabilities()))))

    def device_arch(self, device_index: Device = None) -> str:
        """Returns the architecture of the device, such as sm_90 or gfx90a."""
        module, index = self._device_module(), self.index_of(device_index)
        if self._is_rocm():
            return str(module.get_device_properties(index).gcnArchName).partition(":")[0]
        major, minor = module.get_device_capability(index)
        return f"sm_{major}{minor}"

    def _all_capabilities(self) -> list[tuple[int, int]]:
        module = self._device_module()
        if not module.is_initialized():
            try:
                return nvml.compute_capabilities()
            except nvml.NvmlUnavailableError as error:
                log.debug("cuda: using torch's list of architectures: %s", error)
        return [module.get_device_capability(index) for index in range(self.device_count())]

    def _compute_capability(self) -> tuple[int, int] | None:
        if self._is_rocm():
            return None
        major, minor = self._device_module().get_device_capability()
        return int(major), int(minor)

    def is_bf16_supported(self) -> bool:
        """Returns whether the current device computes in bfloat16: from compute capability 8.0 on, and with ROCm."""
        capability = self._compute_capability()
        return capability is None or capability >= (8, 0)

    def is_fp16_supported(self) -> bool:
        """Returns whether the current device computes in float16: from compute capability 7.0 on, and with ROCm.

        On 6.x it is slow, and counts only with OPFORGE_ALLOW_DEPRECATED_FP16=1 (or DS_ALLOW_DEPRECATED_FP16=1).
        """
        capability = self._compute_capability()
        return capability is None or capability >= ((6, 0) if settings.allow_deprecated_fp16() else (7, 0))

    def is_fp8_supported(self) -> bool:
        """Returns whether the current device multiplies matrices in float8: from 8.9 on, with ROCm from gfx942 on."""
        if (capability := self._compute_capability()) is not None:
            return capability >= (8, 9)
        return self.device_arch().startswith(rocm.FP8_ARCHS)

    def is_triton_supported(self) -> bool:
        """Returns whether Triton is installed and compiles for the current device: from 8.0 on, and with ROCm."""
        capability = self._compute_capability()
        return self._triton_is_installed and (capability is None or capability >= (8, 0))

    def prefer_triton_grouped_mm(self) -> bool:
        """Returns whether a grouped matrix product is faster in Triton: on 8.x, for which torch has no fused kernel."""
        capability = self._compute_capability()
        return capability is not None and (8, 0) <= capability < (9, 0) and self._triton_is_installed

    def default_generator(self, device_index: Device = None) -> torch.Generator:
        """Returns the device's default generator."""
        self._device_module().init()  # before it torch has no generators
        return super().default_generator(device_index)

    # memory

    def available_memory(self, device_index: Device = None) -> int:
        """Returns the free bytes, without the memory of other processes: from NVML if it is installed, else from torch.

        NVML needs nvidia-ml-py (`opforge[cuda]`). Unlike torch it creates no context, which would itself use memory.
        """
        module = self._device_module()
        if not self._is_rocm():
            started = module.is_initialized()
            index = self._number(device_index)
            if index is None:
                index = module.current_device() if started else 0
            try:
                return nvml.memory_info(index, f"GPU-{module.get_device_properties(index).uuid}" if started else "")[0]
            except nvml.NvmlUnavailableError as error:
                log.debug("cuda: using torch's figure for the free memory: %s", error)
        return int(module.mem_get_info(self.index_of(device_index))[0])

    def mem_get_info(self, device_index: Device = None) -> tuple[int, int]:
        """Returns (free, total) bytes of the device; the first is that of `available_memory`."""
        total = self.total_memory(device_index)
        return min(self.available_memory(device_index), total), total

    # ranges

    @property
    def supports_nvtx_domain(self) -> bool:
        """Whether `range_push` respects its `domain` and `category`: if the package nvtx is installed."""
        return self._nvtx is not None

    @cached_property
    def _nvtx(self) -> Any:
        return None if self._is_rocm() else nvtx_package()

    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> None:
        """Opens a named range in the profiler's timeline, by NVTX, with ROCm by ROCTX."""
        if self._nvtx is not None:
            self._nvtx.push_range(msg, domain=domain, category=category)
        else:
            super().range_push(msg)

    def range_pop(self, domain: str | None = None) -> None:
        """Closes the most recent open range of the domain."""
        if self._nvtx is not None:
            self._nvtx.pop_range(domain)
        else:
            super().range_pop()


@cache
def nvtx_package() -> Any:
    """Returns the module of the package nvtx. None if it is not installed."""
    try:
        return importlib.import_module("nvtx")
    except ImportError:
        return None
