"""The generated Python of a variant: `_ops.py`, and an `__init__.py` if the author wrote none."""

from __future__ import annotations

import pprint
from collections.abc import Mapping
from typing import Any

FILE = "_ops.py"

LIBRARY = '''\
"""Opens the library and registers its ops. Written by `opforge pack`; needs @NEEDED@."""

import ctypes
import os

import torch

@LIBRARY@


def _namespaces(library):
    """Returns the namespaces in torch.ops that the library's ops are registered in."""
    library.opforge_describe.restype = ctypes.c_char_p
    lines = library.opforge_describe().decode().partition("\\f")[0].splitlines()
    return [name + _SUFFIX for name in dict.fromkeys(line.partition("::")[0] for line in lines)]


def _register():
    """Returns the namespace of the ops after registering them. Raises ImportError with torch's reason."""
    library = ctypes.CDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), _FILE))
    namespaces = _namespaces(library)
    library.opforge_register.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    library.opforge_register.restype = ctypes.c_char_p
    problem = library.opforge_register(_SUFFIX.encode(), b"")
    if problem is not None:
        # The suffix is this very build's. If ops have it, an earlier import registered them and failed afterwards.
        prefixes = tuple(name + "::" for name in namespaces)
        if not any(name.startswith(prefixes) for name in torch._C._dispatch_get_all_op_names()):
            raise ImportError(f"{_FILE}: its ops could not be registered: {problem.decode(errors='replace')}")
    return namespaces[0]


_NAMESPACE = _register()
ops = getattr(torch.ops, _NAMESPACE)


def _functions():
    """Returns the names of the ops: dir(ops) has only those that were looked up."""
    names = (name.partition("::") for name in torch._C._dispatch_get_all_op_names())
    return sorted({name.partition(".")[0] for namespace, _, name in names if namespace == _NAMESPACE})


def add_op_namespace_prefix(op_name: str) -> str:
    """Returns the name of an op with its namespace, as torch.library takes it."""
    return f"{_NAMESPACE}::{op_name}"
'''

FROM_SOURCE = """\
from opforge.packages.sources.library import library as _library

_FILE, _SUFFIX = _library(os.path.dirname(os.path.abspath(__file__)))
@MODULE@"""
MODULE_FROM_SOURCE = '_MODULE = os.path.basename(_FILE).rpartition("-")[0]'
MODULE = '''\
"""Imports the library's Python module. Written by `opforge pack`; needs @NEEDED@."""

import ctypes
import importlib.util
import os
import sysconfig

import torch

@LIBRARY@


def _registered(library):
    """Returns the namespace of the library's ops after registering them; empty if it has none. Raises ImportError."""
    if not hasattr(library, "opforge_describe"):
        return ""
    library.opforge_describe.restype = library.opforge_register.restype = ctypes.c_char_p
    library.opforge_register.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    first = library.opforge_describe().decode().partition("\\n")[0].partition("::")[0] + _SUFFIX
    if any(name.startswith(first + "::") for name in torch._C._dispatch_get_all_op_names()):
        return first  # an earlier import registered them, and failed afterwards
    problem = library.opforge_register(_SUFFIX.encode(), b"")
    if problem is not None:
        raise ImportError(f"{_FILE}: its ops could not be registered: {problem.decode(errors='replace')}")
    return first


def _imported(path):
    """Returns the library's module. Python without a global lock gets it from the library itself."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        make = ctypes.PyDLL(path).opforge_facade_module
        make.restype = ctypes.py_object
        return make()
    spec = importlib.util.spec_from_file_location(f"{__name__}.{_MODULE}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), _FILE)
_LIBRARY = ctypes.CDLL(_PATH)
_NAMESPACE = _registered(_LIBRARY) or _MODULE + _SUFFIX
ops = _imported(_PATH) if hasattr(_LIBRARY, "opforge_facade_module") else getattr(torch.ops, _NAMESPACE)


def add_op_namespace_prefix(op_name: str) -> str:
    """Returns the name of an op with its namespace, as torch.library takes it."""
    return f"{_NAMESPACE}::{op_name}"
'''

PYTHON_ONLY = '''\
"""The namespace of this package's ops in torch.ops. Written by `opforge pack`; needs torch alone."""

import torch

_NAMESPACE = @NAMESPACE@
ops = getattr(torch.ops, _NAMESPACE)


def add_op_namespace_prefix(op_name: str) -> str:
    """Returns the name of an op with its namespace, as torch.library takes it."""
    return f"{_NAMESPACE}::{op_name}"
'''

OF_TVM_FFI = '''\
"""Opens the library. Written by `opforge pack`; needs tvm-ffi alone."""

import importlib.util
import os

import tvm_ffi

_NAMESPACE = @NAMESPACE@
ops = tvm_ffi.load_module(os.path.join(os.path.dirname(os.path.abspath(__file__)), @FILE@))
has_jax = all(importlib.util.find_spec(name) is not None for name in ("jax", "jax_tvm_ffi"))


def add_op_namespace_prefix(op_name: str) -> str:
    """Returns the name of an op with its namespace, as torch.library takes it."""
    return f"{_NAMESPACE}::{op_name}"


def jax_add_ffi_target_name_prefix(target_name: str) -> str:
    """Returns the name of a target of JAX that only this build has."""
    return f"{_NAMESPACE}::{target_name}"
'''

OF_PLAIN_FUNCTIONS = '''\
"""Opens the library and binds its functions. Written by `opforge pack`; needs torch and opforge."""

import os

import torch  # noqa: F401  # the functions take tensors
from opforge.packages.load.plain_library import functions

@LIBRARY@
_NAMESPACE = @NAMESPACE@
ops = functions(__package__, os.path.dirname(os.path.abspath(__file__)), _FILE, @DECLARED@)


def add_op_namespace_prefix(op_name: str) -> str:
    """Returns the name of an op with its namespace, as torch.library takes it."""
    return f"{_NAMESPACE}::{op_name}"
'''

INIT = '''\
"""The functions of @NAME@. Written by `opforge pack`."""

from . import _ops
from ._ops import ops


def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(ops, name)


def __dir__():
    names = getattr(_ops, "_functions", lambda: dir(ops))()
    return [*globals(), *(name for name in names if not name.startswith("_"))]
'''


def with_library(file: str, suffix: str) -> str:
    """Returns `_ops.py` for a variant whose library is `file`; its namespaces get the suffix."""
    return _library(f'_FILE = "{file}"\n_SUFFIX = "{suffix}"', "torch alone")


def with_module(file: str, suffix: str, module: str) -> str:
    """Returns `_ops.py` for a variant whose library is on the facade, with a Python module of this name."""
    named = f'_FILE = "{file}"\n_SUFFIX = "{suffix}"\n_MODULE = "{module}"'
    return MODULE.replace("@LIBRARY@", named).replace("@NEEDED@", "torch alone")


def from_source(is_on_facade: bool = False) -> str:
    """Returns `_ops.py` for a variant whose library is built from the sources in it."""
    if is_on_facade:
        text = FROM_SOURCE.replace("@MODULE@", MODULE_FROM_SOURCE)
        return MODULE.replace("@LIBRARY@", text).replace("@NEEDED@", "torch and opforge")
    return _library(FROM_SOURCE.replace("\n@MODULE@", ""), "torch and opforge")


def _library(text: str, needed: str) -> str:
    return LIBRARY.replace("@LIBRARY@", text).replace("@NEEDED@", needed)


def python_only(namespace: str) -> str:
    """Returns `_ops.py` for a variant without a library."""
    return PYTHON_ONLY.replace("@NAMESPACE@", f'"{namespace}"')


def of_tvm_ffi(file: str, namespace: str) -> str:
    """Returns `_ops.py` for a variant whose library `file` has functions of tvm-ffi."""
    return OF_TVM_FFI.replace("@NAMESPACE@", f'"{namespace}"').replace("@FILE@", f'"{file}"')


def of_plain_functions(file: str, namespace: str, declared: Mapping[str, Any]) -> str:
    """Returns `_ops.py` for a variant whose library has plain functions; `declared` says how they are called.

    `file` is the library in the variant; empty if it is built from the sources in it.
    """
    library = f'_FILE = "{file}"' if file else FROM_SOURCE.replace("\n@MODULE@", "")
    text = OF_PLAIN_FUNCTIONS.replace("@NAMESPACE@", f'"{namespace}"').replace("@LIBRARY@", library)
    return text.replace("@DECLARED@", pprint.pformat(dict(declared), width=100, sort_dicts=True))


def init(name: str) -> str:
    """Returns an `__init__.py` that offers the library's functions."""
    return INIT.replace("@NAME@", name)
