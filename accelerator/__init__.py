"""Accelerators: which one is in use, and what its device can do.

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
}

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
    from opforge import lazy  # no hit needs it

    return lazy.names(__name__, _MODULES)[0](name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
