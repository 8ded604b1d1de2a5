"""Accelerators: the one in use, and the capabilities of its device.

Each name below is imported on first use, so that importing this package imports nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .availability import Candidate, candidates
    from .capabilities import Capabilities
    from .devices.cpu import CPUAccelerator
    from .interface.accelerator import INTERFACE_VERSION, Accelerator
    from .select import get_accelerator, set_accelerator, use_accelerator
    from .target import Target

_MODULES = {
    "Accelerator": "interface.accelerator",
    "CPUAccelerator": "devices.cpu",
    "INTERFACE_VERSION": "interface.accelerator",
    "Candidate": "availability",
    "Capabilities": "capabilities",
    "Target": "target",
    "candidates": "availability",
    "get_accelerator": "select",
    "set_accelerator": "select",
    "use_accelerator": "select",
    # DeepSpeed's names
    "CPU_Accelerator": "cpu_accelerator",
    "CUDA_Accelerator": "cuda_accelerator",
    "DeepSpeedAccelerator": "abstract_accelerator",
    "HPU_Accelerator": "hpu_accelerator",
    "KLXPU_Accelerator": "klxpu_accelerator",
    "MLU_Accelerator": "mlu_accelerator",
    "MPS_Accelerator": "mps_accelerator",
    "NPU_Accelerator": "npu_accelerator",
    "SDAA_Accelerator": "sdaa_accelerator",
    "SUPA_Accelerator": "supa_accelerator",
    "XPU_Accelerator": "xpu_accelerator",
}
__path__.append(f"{__path__[0]}/deepspeed_names")  # its modules are this package's too, such as cuda_accelerator

__all__ = [
    "INTERFACE_VERSION",
    "Accelerator",
    "CPUAccelerator",
    "Candidate",
    "Capabilities",
    "Target",
    "candidates",
    "get_accelerator",
    "set_accelerator",
    "use_accelerator",
]


def __getattr__(name: str) -> Any:
    from opforge.foundation import lazy  # no hit needs it

    return lazy.names(__name__, _MODULES)[0](name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
