"""What the device is and what it can do, and which one is in use.

The names below are read on first use, so that importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .candidate import Candidate, candidates
    from .capabilities import Capabilities
    from .cpu import CPUAccelerator
    from .interface import INTERFACE_VERSION, Accelerator
    from .select import get_accelerator, set_accelerator, use_accelerator
    from .target import Target

_HOME = {
    "Accelerator": "interface",
    "CPUAccelerator": "cpu",
    "INTERFACE_VERSION": "interface",
    "Candidate": "candidate",
    "Capabilities": "capabilities",
    "Target": "target",
    "candidates": "candidate",
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


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
