"""Huawei's Ascend devices, through torch_npu."""

from __future__ import annotations

from threading import local
from typing import TYPE_CHECKING

from opforge.accelerator.target import Target
from opforge.accelerator.vendors.vendor import Vendor
from opforge.foundation.lazy import cached_property

if TYPE_CHECKING:
    from typing import Any

    from opforge.accelerator.target import Target

_MAPPED = 2
"""ACL_HOST_REG_MAPPED of CANN's aclrtHostRegisterV2: page-locked, and mapped into the device's address space."""


class NPUAccelerator(Vendor):
    """A device is one Ascend processor."""

    name = torch_device = "npu"
    package = "torch_npu"
    device_files = "dev/davinci[0-9]*"
    _communication_backend = "hccl"
    _visible_devices = ("ASCEND_RT_VISIBLE_DEVICES",)
    _exported = ("ASCEND_", "HCCL_", "LD_LIBRARY_PATH", "PATH")

    def _find_target(self) -> Target:
        return Target("npu", (str(self._device_module().get_device_name()),))  # the processor's name: Ascend910B3

    @cached_property
    def _ranges(self) -> Any:
        return _Ranges(self._device_module())

    def pin_memory_alignment(self) -> int:
        """Returns 4096, because CANN maps whole pages."""
        return 4096

    def register_host_memory(self, address: int, num_bytes: int) -> bool:
        """Page-locks and maps the memory. Returns False if this torch_npu has no such function, or CANN refuses."""
        runtime = self._device_function("npurt")
        return runtime is not None and runtime().npuHostRegister(address, num_bytes, _MAPPED) == 0

    def unregister_host_memory(self, address: int) -> None:
        """Reverts `register_host_memory`. Raises RuntimeError if CANN refuses: the memory must then not be freed."""
        runtime = self._device_function("npurt")
        code = 0 if runtime is None else runtime().npuHostUnregister(address)
        if code:
            raise RuntimeError(f"npuHostUnregister({address:#x}) failed with code {code}: keep the memory allocated.")


class _Ranges:
    """Push and pop over MSTX, which returns a number for each range. Open ranges are kept by thread."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._open = local()

    def range_push(self, msg: str) -> None:
        number = self._module.mstx.range_start(msg, self._module.current_stream())
        self._open.__dict__.setdefault("ranges", []).append(number)

    def range_pop(self) -> None:
        if numbers := self._open.__dict__.get("ranges"):
            self._module.mstx.range_end(numbers.pop())
