"""Tecorigin's devices, through torch_sdaa."""

from __future__ import annotations

from opforge.accelerator.vendors.vendor import Vendor


class SDAAAccelerator(Vendor):
    """A device is one core group of a Teco card. It captures no graphs, so they are emulated on the host."""

    name = torch_device = "sdaa"
    package = "torch_sdaa"
    device_files = "dev/tcaicard[0-9]*"
    _communication_backend = "tccl"
    _visible_devices = ("SDAA_VISIBLE_DEVICES",)
    _exported = ("TCCL_", "SDAA_", "LD_LIBRARY_PATH", "PATH")
