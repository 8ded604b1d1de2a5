"""A library's Python module, imported from the library's own path."""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import os
import sys
from functools import cache
from typing import TYPE_CHECKING

from . import load_advice

if TYPE_CHECKING:
    from types import ModuleType


@cache
def load(op: str, path: str) -> ModuleType | None:
    """Returns the module `op` of a library, or None if the library's initialisation returns none. Raises LoadError.

    The module is not in `sys.modules`.
    """
    # pybind11 keeps a process's modules by the name in their spec: under one name, a second library would get the
    # first one's functions. The name of the file is the entry's own, and Python looks for PyInit_ and the last part.
    name = f"{os.path.splitext(os.path.basename(path))[0]}.{op}"
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    try:
        if module := made_by_library(op, path):
            module.__file__, module.__loader__, module.__spec__ = path, loader, spec
            return module
        module = importlib.util.module_from_spec(spec)
        module.__name__ = op  # before the bindings run: classes get it as their __module__
        loader.exec_module(module)
    except ImportError as error:
        raise load_advice.load_error(op, path, error) from error
    except SystemError as error:
        if error.__cause__ is not None:
            raise
        return None  # a PyInit of one line that only satisfies a linker: return nullptr
    return module


def made_by_library(op: str, path: str) -> ModuleType | None:
    """Returns the module `op` that a library on the facade makes without Python's import; None for any other library.

    `import` fills the module before its caller can name it: classes and texts of errors would have the spec's name,
    with the entry's key. In a Python without a global lock it cannot take what such a library returns, as an object's
    head is not the same there. Raises ImportError, and what the source's own code raises.
    """
    try:
        library = ctypes.PyDLL(path, mode=sys.getdlopenflags())
        make = library.opforge_facade_module
        getattr(library, f"PyInit_{op}")  # without it, import states what is missing
    except (OSError, AttributeError):
        return None
    make.restype = ctypes.py_object
    module: ModuleType = make()
    return module


def is_empty(module: ModuleType) -> bool:
    """Returns whether a module has nothing but what Python adds to each one."""
    return all(name.startswith("__") and name.endswith("__") for name in vars(module))
