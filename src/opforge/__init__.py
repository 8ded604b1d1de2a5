"""opforge: builds, caches, ships and loads compiled PyTorch ops, and tells what the accelerator can do."""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False  # as type checkers know it: to import typing would take most of this module's time
if TYPE_CHECKING:
    from typing import Any

    from opforge import accelerator as accelerator
    from opforge import builders as builders
    from opforge import errors as errors
    from opforge import ops as ops
    from opforge.accelerator.select import get_accelerator, set_accelerator, use_accelerator
    from opforge.builders.base import OpBuilder
    from opforge.ops.triton.caching import triton_cache

    from .builders.jit import load, load_inline
    from .builders.spec.kernel_roots import kernel_root

if sys.platform not in ("linux", "darwin"):
    raise ImportError(f"opforge runs on Linux, and on macOS without building, not on {sys.platform}")

__version__ = "0.1.0"
_PLACES = {
    "OpBuilder": "opforge.builders.base",
    "get_accelerator": "opforge.accelerator.select",
    "kernel_root": "opforge.builders.spec.kernel_roots",
    "load": "opforge.builders.jit",
    "load_inline": "opforge.builders.jit",
    "set_accelerator": "opforge.accelerator.select",
    "triton_cache": "opforge.ops.triton.caching",
    "use_accelerator": "opforge.accelerator.select",
}
_PARTS = ("accelerator", "builders", "errors", "ops")
__all__ = [
    "OpBuilder",
    "get_accelerator",
    "kernel_root",
    "load",
    "load_inline",
    "set_accelerator",
    "triton_cache",
    "use_accelerator",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import opforge` reads nothing and imports no torch."""
    if name in _PARTS:
        return importlib.import_module(f"opforge.{name}")
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'opforge' has no attribute {name!r}")
    value = getattr(importlib.import_module(place), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_PARTS, *(name for name in globals() if name.startswith("__"))})


# After torch, whose import takes seconds and brings every standard module that a load needs, the few milliseconds of
# our own modules belong here and not in the first load; without torch they are left until somebody asks for them.
if "torch" in sys.modules:
    for _place in ("opforge.accelerator.select", "opforge.builders.base", "opforge.builders.jit"):
        importlib.import_module(_place)
    for _place in importlib.import_module("opforge.builders.cpu").BUILDERS.values():
        importlib.import_module(_place.partition(":")[0])
