"""Cambricon's devices, by torch_mlu."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge.accelerator.vendors.vendor import Vendor

if TYPE_CHECKING:
    from typing import Any


class MLUAccelerator(Vendor):
    """One MLU a device."""

    name = torch_device = "mlu"
    package = "torch_mlu"
    device_files = "dev/cambricon_dev[0-9]*"
    triton_backend = True
    _communication_backend = "cncl"
    _visible_devices = ("MLU_VISIBLE_DEVICES",)
    _exported = ("NEUWARE_HOME", "CNCL_", "LD_LIBRARY_PATH", "PATH")

    def _ranges(self) -> Any:
        return self._device_module().cnpx
