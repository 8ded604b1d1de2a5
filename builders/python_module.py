"""A library's Python module, imported from the library's own path."""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import os
import sysconfig
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
        if sysconfig.get_config_var("Py_GIL_DISABLED") and (module := made_by_library(path)):
            module.__file__, module.__spec__ = path, spec
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


def made_by_library(path: str) -> ModuleType | None:
    """Returns the module that a library on the facade makes without Python's import; None for any other library.

    An object's head is not the same in a Python without a global lock, so `import` cannot take what it would make.
    Raises ImportError, and what the source's own code raises.
    """
    try:
        make = ctypes.PyDLL(path).opforge_facade_module
    except (OSError, AttributeError):
        return None
    make.restype = ctypes.py_object
    module: ModuleType = make()
    return module


def is_empty(module: ModuleType) -> bool:
    """Returns whether a module has nothing but what Python adds to each one."""
    return all(name.startswith("__") and name.endswith("__") for name in vars(module))
