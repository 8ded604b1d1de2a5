"""Kunlunxin's devices, through torch_xmlir, which adds them to torch under the names of torch.cuda."""

from __future__ import annotations

import os

from opforge.accelerator.vendors.vendor import Vendor


class KLXPUAccelerator(Vendor):
    """A device is one Kunlun XPU. Tensors, streams and memory are torch.cuda's, so this is tried before CUDA."""

    name, torch_device = "klxpu", "cuda"
    package = "torch_xmlir"
    device_files = "dev/xpu[0-9]*"
    range_module = "nvtx"
    _communication_backend = "nccl"
    _visible_devices = ("CUDA_VISIBLE_DEVICES",)
    _exported = ("BKCL", "XPU", "XMLIR", "LD_LIBRARY_PATH", "PATH")

    def use_host_timers(self) -> bool:
        """Returns whether time must be measured on the host: events measure none without XPU_EVENT_KL3_ENABLE=1."""
        return os.environ.get("XPU_EVENT_KL3_ENABLE") != "1"
