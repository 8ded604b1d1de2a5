"""Imports the Python of a variant: one module for each tree of files in a process, and nothing left by a failure."""

from __future__ import annotations

import os
import sys
import threading
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from types import ModuleType

_lock = threading.RLock()
"""Held while a package is imported. Reentrant: a package's Python may load another package."""
_modules: dict[str, ModuleType] = {}
"""By the name in sys.modules."""


def _replace_lock() -> None:
    """Replaces the lock in a forked child: the thread that held it is gone, and nobody would release it."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_replace_lock)


def loaded(name: str) -> ModuleType | None:
    """Returns the module of this name if it has been imported here."""
    return _modules.get(name)


def import_tree(folder: str, name: str, bytecode: bool = True) -> ModuleType:
    """Returns the module of a variant's folder under a name of its own; imports it if this process has not yet.

    Without `bytecode` Python neither reads nor writes any: a folder that is not installed may have bytecode that no
    digest covers. Raises whatever importing raises; then nothing stays in sys.modules.
    """
    module = _modules.get(name)
    if module is not None:
        return module
    with _lock:
        module = _modules.get(name)
        if module is not None:
            return module
        path = os.path.join(folder, "__init__.py")
        loader = SourceFileLoader(name, path)
        spec = ModuleSpec(name, loader, origin=path, is_package=True)
        spec.has_location = True
        assert spec.submodule_search_locations is not None
        spec.submodule_search_locations.append(folder)
        module = module_from_spec(spec)
        sys.modules[name] = module
        before = sys.dont_write_bytecode
        try:
            if not bytecode:
                sys.dont_write_bytecode = True
            loader.exec_module(module)
        except BaseException:
            _forget(name)
            raise
        finally:
            sys.dont_write_bytecode = before
        _modules[name] = module
        return module


def _forget(name: str) -> None:
    prefix = name + "."
    for other in [other for other in sys.modules if other == name or other.startswith(prefix)]:
        del sys.modules[other]
