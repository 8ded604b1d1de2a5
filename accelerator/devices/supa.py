"""Biren's devices, through torch_supa."""

from __future__ import annotations

from opforge.accelerator.vendors.host_registration import HostRegistration
from opforge.accelerator.vendors.vendor import Vendor


class SUPAAccelerator(HostRegistration, Vendor):
    """A device is one Biren card. torch_supa also provides the names of torch.cuda, so this is tried before CUDA."""

    name = torch_device = runtime_prefix = "supa"
    package = "torch_supa"
    device_files = "dev/biren/card_*"
    range_module = "brtx"
    triton_backend = True
    _communication_backend = "bccl"
    _visible_devices = ("SUPA_VISIBLE_DEVICES",)
    _exported = ("BCCL_", "BIREN_", "SUPA_", "LD_LIBRARY_PATH", "PATH")
