"""opforge builds, caches, ships and loads compiled PyTorch ops, and reports what the accelerator can do."""

from __future__ import annotations

import importlib
import os
import sys

TYPE_CHECKING = False  # type checkers know this name; importing typing would take most of this module's time
if TYPE_CHECKING:
    from typing import Any

    from opforge import accelerator as accelerator
    from opforge import builders as builders
    from opforge import errors as errors
    from opforge import ops as ops
    from opforge.accelerator.select import get_accelerator, set_accelerator, use_accelerator
    from opforge.builders.base import OpBuilder
    from opforge.ops.triton.caching import triton_cache

    from .builders.batch import prepare
    from .builders.jit import load, load_inline
    from .builders.spec.kernel_roots import kernel_root
    from .builders.waiting.no_builds import no_builds
    from .packages.load.get_kernel import get_kernel

if sys.platform not in ("linux", "darwin"):
    raise ImportError(f"opforge runs on Linux, and on macOS without building, not on {sys.platform}")

__version__ = "0.1.0"
_MODULES = {
    "OpBuilder": "opforge.builders.base",
    "get_accelerator": "opforge.accelerator.select",
    "get_kernel": "opforge.packages.load.get_kernel",
    "kernel_root": "opforge.builders.spec.kernel_roots",
    "load": "opforge.builders.jit",
    "load_inline": "opforge.builders.jit",
    "no_builds": "opforge.builders.waiting.no_builds",
    "prepare": "opforge.builders.batch",
    "set_accelerator": "opforge.accelerator.select",
    "triton_cache": "opforge.ops.triton.caching",
    "use_accelerator": "opforge.accelerator.select",
}
_SUBPACKAGES = ("accelerator", "builders", "errors", "ops")
__all__ = [
    "OpBuilder",
    "get_accelerator",
    "get_kernel",
    "kernel_root",
    "load",
    "load_inline",
    "no_builds",
    "prepare",
    "set_accelerator",
    "triton_cache",
    "use_accelerator",
]


def __getattr__(name: str) -> Any:
    """Imports a public name on first use, so that `import opforge` reads no file and does not import torch."""
    if name in _SUBPACKAGES:
        return importlib.import_module(f"opforge.{name}")
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'opforge' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBPACKAGES, *(name for name in globals() if name.startswith("__"))})


# If torch is imported already, import what every load needs: otherwise the first load takes these milliseconds. Torch
# took seconds and imported the standard modules that a load needs. Without torch, these modules are imported on use.
if "torch" in sys.modules:
    for _module in ("opforge.accelerator.select", "opforge.builders.base", "opforge.builders.jit"):
        importlib.import_module(_module)
    _host = importlib.import_module("opforge.builders.cpu")
    for _name in _host.PRELOADED:
        importlib.import_module(_host.BUILDERS[_name].partition(":")[0])
    # Where no look-up can be remembered, each first load of an op searches the layers and the store. Where this package
    # carries ops, that of each of them does once.
    _layer = os.path.join(os.path.dirname(__file__), importlib.import_module("opforge.cache.layout").PACKAGE_LAYER)
    if os.path.isdir(_layer) or not importlib.import_module("opforge.cache.machine_folder").kept_folders():
        for _module in ("builders.lookup.fit", "builders.spec.description", "cache.records.validity"):
            importlib.import_module(f"opforge.{_module}")
        importlib.import_module("opforge.builders.spec.machine").libstdcxx()  # kept there
    if importlib.import_module("opforge.settings").has_kernels():
        importlib.import_module("opforge.packages.load.get_kernel")
