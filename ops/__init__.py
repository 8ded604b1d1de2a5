"""The op library's front ends: torch optimizers whose steps run in opforge's own kernels.

Importing this package imports nothing; a front end is imported, and torch with it, when its name is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cpu_adagrad import CPUAdagrad
    from .cpu_adam import CPUAdam
    from .cpu_lion import CPULion
    from .fused_adam import FusedAdam
    from .fused_lamb import FusedLamb
    from .fused_lion import FusedLion

__all__ = ["CPUAdagrad", "CPUAdam", "CPULion", "FusedAdam", "FusedLamb", "FusedLion"]

_MODULES = {
    "CPUAdagrad": "cpu_adagrad",
    "CPUAdam": "cpu_adam",
    "CPULion": "cpu_lion",
    "FusedAdam": "fused_adam",
    "FusedLamb": "fused_lamb",
    "FusedLion": "fused_lion",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
