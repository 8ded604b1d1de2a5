"""NVIDIA's GPUs by CUDA, and AMD's by ROCm, whose torch answers to the same names."""

from __future__ import annotations

import importlib
import logging
from functools import cache
from typing import TYPE_CHECKING

from opforge import settings
from opforge.accelerator.vendors import nvidia, nvml, rocm
from opforge.accelerator.vendors.vendor import Vendor

if TYPE_CHECKING:
    from typing import Any

    import torch

    from opforge.accelerator.target import Target

log = logging.getLogger("opforge")


class CUDAAccelerator(Vendor):
    """One GPU, or one MIG part of one, a device. On ROCm the target's device is `hip`, everything else is `cuda`."""

    name = torch_device = "cuda"
    package = "torch"
    _communication_backend = "nccl"

    def _hip(self) -> bool:
        return getattr(_torch_version(), "hip", None) is not None

    def _package_obstacle(self) -> str:
        version = _torch_version()
        if version is None or version.cuda or version.hip:
            return super()._package_obstacle()
        return f"this torch ({version.__version__}) is built without CUDA and without ROCm"

    def _hidden(self) -> str:
        return super()._hidden() if self._hip() else ""  # CUDA's list is read with the devices

    def _device_obstacle(self) -> str:
        if self._hip():
            return rocm.obstacle(self.root)
        toolkit = getattr(_torch_version(), "cuda", None)
        return nvidia.obstacle(toolkit, self.root) if toolkit else ""

    def visible_devices_envs(self) -> list[str]:
        """Give CUDA_VISIBLE_DEVICES, with ROCm its own name for it first."""
        return ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"] if self._hip() else ["CUDA_VISIBLE_DEVICES"]

    def export_envs(self) -> list[str]:
        """Give the beginnings of NCCL's variables, with ROCm of RCCL's and the HSA runtime's too."""
        return ["NCCL_", "TORCH_NCCL_", *(["RCCL_", "HSA_"] if self._hip() else [])]

    # architectures

    def _find_target(self) -> Target:
        from opforge.accelerator.target import Target

        if self._hip():
            properties = self._device_module().get_device_properties
            # gcnArchName is the processor and its settings: gfx90a:sramecc+:xnack-
            names = {properties(index).gcnArchName.partition(":")[0] for index in range(self.device_count())}
            return Target("hip", tuple(sorted(names)))
        return Target("cuda", tuple(f"sm_{major}{minor}" for major, minor in sorted(set(self._all_capabilities()))))

    def _all_capabilities(self) -> list[tuple[int, int]]:
        module = self._device_module()
        if not module.is_initialized():
            try:
                return nvml.compute_capabilities()
            except nvml.NvmlUnavailableError as problem:
                log.debug("cuda: the architectures are asked of torch: %s", problem)
        return [module.get_device_capability(index) for index in range(self.device_count())]

    def _compute_capability(self) -> tuple[int, int] | None:
        if self._hip():
            return None
        major, minor = self._device_module().get_device_capability()
        return int(major), int(minor)

    def is_bf16_supported(self) -> bool:
        """Whether the current device computes in bfloat16: from compute capability 8.0 on, and with ROCm."""
        numbers = self._compute_capability()
        return numbers is None or numbers >= (8, 0)

    def is_fp16_supported(self) -> bool:
        """Whether the current device computes in float16: from compute capability 7.0 on, and with ROCm.

        On 6.x it is slow, and allowed by OPFORGE_ALLOW_DEPRECATED_FP16=1 (or DS_ALLOW_DEPRECATED_FP16=1).
        """
        numbers = self._compute_capability()
        return numbers is None or numbers >= ((6, 0) if settings.allow_deprecated_fp16() else (7, 0))

    def is_triton_supported(self) -> bool:
        """Whether Triton is installed and compiles for the current device: from 8.0 on, and with ROCm."""
        numbers = self._compute_capability()
        return self._triton_is_installed() and (numbers is None or numbers >= (8, 0))

    def prefer_triton_grouped_mm(self) -> bool:
        """Whether a grouped matrix product is faster in Triton: on 8.x, for which torch has no fused kernel."""
        numbers = self._compute_capability()
        return numbers is not None and (8, 0) <= numbers < (9, 0) and self._triton_is_installed()

    def default_generator(self, device_index: int | None = None) -> torch.Generator:
        """Give the device's own generator."""
        self._device_module().init()  # torch makes the generators only then
        return super().default_generator(device_index)

    # memory

    def available_memory(self, device_index: int | None = None) -> int:
        """Give the free bytes, counting what other processes took: by NVML where it is there, else as torch tells.

        NVML needs nvidia-ml-py (`opforge[cuda]`), and unlike torch starts no context, which would take memory itself.
        """
        module = self._device_module()
        if not self._hip():
            started = module.is_initialized()
            index = (module.current_device() if started else 0) if device_index is None else device_index
            try:
                return nvml.memory(index, f"GPU-{module.get_device_properties(index).uuid}" if started else "")[0]
            except nvml.NvmlUnavailableError as problem:
                log.debug("cuda: free memory is asked of torch: %s", problem)
        return int(module.mem_get_info(device_index)[0])

    def mem_get_info(self, device_index: int | None = None) -> tuple[int, int]:
        """Give (free, total) bytes of the device, the first as `available_memory` does."""
        total = self.total_memory(device_index)
        return min(self.available_memory(device_index), total), total

    def register_host_memory(self, address: int, num_bytes: int) -> bool:
        """Page-lock the memory for all devices; torch's CudaError where that fails."""
        module = self._device_module()
        module.check_error(int(module.cudart().cudaHostRegister(address, num_bytes, 0)))
        return True

    def unregister_host_memory(self, address: int) -> None:
        """Undo that."""
        module = self._device_module()
        module.check_error(int(module.cudart().cudaHostUnregister(address)))

    # ranges

    @property
    def supports_nvtx_domain(self) -> bool:
        """Whether `range_push` heeds its `domain` and `category`: where the package nvtx is installed."""
        return not self._hip() and _nvtx() is not None

    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> None:
        """Open a named range in the profiler's timeline, by NVTX, with ROCm by ROCTX."""
        if self.supports_nvtx_domain:
            _nvtx().push_range(msg, domain=domain, category=category)
        else:
            super().range_push(msg)

    def range_pop(self, domain: str | None = None) -> None:
        """Close the range of the domain that was opened last."""
        if self.supports_nvtx_domain:
            _nvtx().pop_range(domain)
        else:
            super().range_pop()

    def _ranges(self) -> Any:
        return self._device_module().nvtx


@cache
def _nvtx() -> Any:
    try:
        return importlib.import_module("nvtx")
    except ImportError:
        return None


def _torch_version() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch.version
