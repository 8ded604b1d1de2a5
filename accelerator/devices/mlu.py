"""Cambricon's devices, through torch_mlu."""

from __future__ import annotations

from opforge.accelerator.vendors.vendor import Vendor


class MLUAccelerator(Vendor):
    """A device is one MLU."""

    name = torch_device = "mlu"
    package = "torch_mlu"
    device_files = "dev/cambricon_dev[0-9]*"
    range_module = "cnpx"
    triton_backend = True
    _communication_backend = "cncl"
    _visible_devices = ("MLU_VISIBLE_DEVICES",)
    _exported = ("NEUWARE_HOME", "CNCL_", "LD_LIBRARY_PATH", "PATH")
