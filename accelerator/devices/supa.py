"""Biren's devices, by torch_supa."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge.accelerator.vendors.vendor import Vendor

if TYPE_CHECKING:
    from typing import Any


class SUPAAccelerator(Vendor):
    """One Biren card a device. torch_supa answers for `torch.cuda` too, so this one is tried before CUDA."""

    name = torch_device = "supa"
    package = "torch_supa"
    device_files = "dev/biren/card_*"
    triton_backend = True
    _communication_backend = "bccl"
    _visible_devices = ("SUPA_VISIBLE_DEVICES",)
    _exported = ("BCCL_", "BIREN_", "SUPA_", "LD_LIBRARY_PATH", "PATH")

    def _ranges(self) -> Any:
        return self._device_module().brtx

    def register_host_memory(self, address: int, num_bytes: int) -> bool:
        """Page-lock the memory for the device; the vendor's error where that fails."""
        module = self._device_module()
        module.check_error(int(module.supart().supaHostRegister(address, num_bytes, 0)))
        return True

    def unregister_host_memory(self, address: int) -> None:
        """Undo that."""
        module = self._device_module()
        module.check_error(int(module.supart().supaHostUnregister(address)))
