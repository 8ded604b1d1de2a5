"""opforge builds, caches, ships and loads compiled PyTorch ops, and reports what the accelerator can do."""

from __future__ import annotations

import importlib
import os
import sys

TYPE_CHECKING = bool()  # noqa: UP018 (importing typing takes most of this module's time; jedi does not look behind False)
if TYPE_CHECKING:
    from typing import Any

    __version__: str

    from opforge import accelerator as accelerator
    from opforge import builders as builders
    from opforge import errors as errors
    from opforge import ops as ops
    from opforge.accelerator.select import get_accelerator, set_accelerator, use_accelerator
    from opforge.builders.base import OpBuilder

    from .builders.batch import prepare
    from .builders.declaration.kernel_roots import kernel_root
    from .builders.jit import load, load_inline
    from .builders.no_builds import no_builds
    from .graphs.functions import compile
    from .graphs.scope import compiled, load_compiled, save_compiled
    from .jits.scope import warm
    from .models.scope import explain_kernels, kernels_for
    from .packages.load.get_kernel import get_kernel, get_local_kernel
    from .programs.load import load_program
    from .programs.save import save_program

if sys.platform not in ("linux", "darwin"):
    raise ImportError(f"opforge runs on Linux, and on macOS without building, not on {sys.platform}")

_MODULES = {
    "OpBuilder": "opforge.builders.base",
    "compile": "opforge.graphs.functions",
    "compiled": "opforge.graphs.scope",
    "explain_kernels": "opforge.models.scope",
    "get_accelerator": "opforge.accelerator.select",
    "get_kernel": "opforge.packages.load.get_kernel",
    "get_local_kernel": "opforge.packages.load.get_kernel",
    "kernel_root": "opforge.builders.declaration.kernel_roots",
    "kernels_for": "opforge.models.scope",
    "load": "opforge.builders.jit",
    "load_compiled": "opforge.graphs.scope",
    "load_inline": "opforge.builders.jit",
    "load_program": "opforge.programs.load",
    "no_builds": "opforge.builders.no_builds",
    "prepare": "opforge.builders.batch",
    "save_compiled": "opforge.graphs.scope",
    "save_program": "opforge.programs.save",
    "set_accelerator": "opforge.accelerator.select",
    "use_accelerator": "opforge.accelerator.select",
    "warm": "opforge.jits.scope",
}
_SUBPACKAGES = ("accelerator", "builders", "errors", "ops")
__all__ = [
    "OpBuilder",
    "compile",
    "compiled",
    "explain_kernels",
    "get_accelerator",
    "get_kernel",
    "get_local_kernel",
    "kernel_root",
    "kernels_for",
    "load",
    "load_compiled",
    "load_inline",
    "load_program",
    "no_builds",
    "prepare",
    "save_compiled",
    "save_program",
    "set_accelerator",
    "use_accelerator",
    "warm",
]


def __getattr__(name: str) -> Any:
    """Imports a public name on first use, so that `import opforge` reads no file and does not import torch."""
    if name in _SUBPACKAGES:
        return importlib.import_module(f"opforge.{name}")
    if name == "__version__":
        return importlib.import_module("opforge.foundation.opforge_version").VERSION
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'opforge' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBPACKAGES, *(name for name in globals() if name.startswith("__"))})


def _let_imports_end() -> None:
    """Waits, before a fork, while another thread imports a part of opforge: the child would wait for it for ever.

    In the child that thread is gone, and the locks of the modules that it was importing stay locked. The wait is 10 s
    at most, since the other thread may wait for something that this thread holds. The lock of logging, which logging
    takes before a fork, is released meanwhile: modules ask for their loggers.
    """
    threading = sys.modules.get("threading")
    if threading is None or threading.active_count() == 1:
        return
    from time import monotonic

    locks = getattr(sys.modules.get("_frozen_importlib"), "_module_locks", {})  # CPython's, by the names of modules
    none_or_own = (None, threading.get_ident())

    def is_importing() -> bool:
        parts = [lock for name, lock in locks.copy().items() if name.startswith("opforge")]
        return any(getattr(lock(), "owner", None) not in none_or_own for lock in parts)

    lock = getattr(sys.modules.get("logging"), "_lock", None)
    if lock is None or not lock._is_owned():
        lock = threading.RLock()
    end = monotonic() + 10
    with lock:
        while is_importing() and monotonic() < end:
            threading.Condition(lock).wait(0.001)


os.register_at_fork(before=_let_imports_end)

if os.environ.get("OPFORGE_WARM"):  # for a whole job: what its processes compile is kept under a label
    importlib.import_module("opforge.jits.scope").begin_job()
