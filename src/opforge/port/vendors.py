"""The names of a vendor: its device in torch, its communication backend, its packages, its environment variables."""

from __future__ import annotations

import re

VENDORS = ("cuda", "xpu", "npu", "hpu", "mps", "mlu", "sdaa", "supa")
"""torch's device types that belong to one vendor. Each is a module `torch.<vendor>` if its package is installed."""

MOVE_METHODS = tuple(vendor for vendor in VENDORS if vendor != "mps")
"""Methods that move a tensor or a module to the vendor's device."""

BACKENDS = {
    "nccl": ("cuda",),
    "rccl": ("cuda",),
    "ccl": ("xpu",),
    "xccl": ("xpu",),
    "hccl": ("npu", "hpu"),
    "cncl": ("mlu",),
    "tccl": ("sdaa",),
    "bccl": ("supa",),
}
"""torch.distributed's backends by name, with their vendors. gloo and mpi belong to no vendor."""

PACKAGES = {
    "torch_npu": "npu",
    "habana_frameworks": "hpu",
    "intel_extension_for_pytorch": "xpu",
    "oneccl_bindings_for_pytorch": "xpu",
    "torch_mlu": "mlu",
    "torch_sdaa": "sdaa",
    "torch_xmlir": "cuda",
    "pynvml": "cuda",
    "cupy": "cuda",
    "pycuda": "cuda",
}
"""Top-level packages that exist only on a vendor's machine."""

VARIABLES = {
    "CUDA_VISIBLE_DEVICES": "cuda",
    "NVIDIA_VISIBLE_DEVICES": "cuda",
    "HIP_VISIBLE_DEVICES": "cuda",
    "ROCR_VISIBLE_DEVICES": "cuda",
    "CUDA_LAUNCH_BLOCKING": "cuda",
    "ZE_AFFINITY_MASK": "xpu",
    "ASCEND_RT_VISIBLE_DEVICES": "npu",
    "HABANA_VISIBLE_DEVICES": "hpu",
    "HABANA_VISIBLE_MODULES": "hpu",
    "MLU_VISIBLE_DEVICES": "mlu",
    "SDAA_VISIBLE_DEVICES": "sdaa",
    "SUPA_VISIBLE_DEVICES": "supa",
}
"""Environment variables that only one vendor's software reads."""

DEVICE = re.compile(rf"({'|'.join(VENDORS)})(?::(\d+))?")
"""A whole device string: the vendor, and the index if it has one."""

QUALIFIED = re.compile(rf"torch\.({'|'.join(VENDORS)})\.[\w.]+")
"""A name below `torch.<vendor>`, written as a string."""

_WORDS = (*VENDORS, *BACKENDS, *PACKAGES, *VARIABLES, "cudnn", "miopen", "hip", "pin_memory", "deepspeed")
HINT = re.compile(rf"(?<![a-zA-Z])(?:{'|'.join(_WORDS)})(?![a-zA-Z])")
"""Matches in every text that has a vendor reference. A text without a match need not be parsed."""


def vendors_of_string(text: str) -> tuple[str, ...]:
    """Returns the vendors that a string names as a device, a backend, a variable or a torch name; () if none."""
    for pattern in (DEVICE, QUALIFIED):
        if match := pattern.fullmatch(text):
            return (match.group(1),)
    if text in VARIABLES:
        return (VARIABLES[text],)
    return BACKENDS.get(text, ())
