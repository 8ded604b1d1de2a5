"""The op library's front ends: torch optimizers whose steps run in opforge's own kernels.

Importing this package imports nothing; a front end is imported, and torch with it, when its name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge import lazy

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
__getattr__, __dir__ = lazy.names(__name__, _MODULES)
