"""Calls the plain C functions of a package's library, such as the launcher of a Triton op: `_ops.py` imports this.

Neither Triton nor a compiler is needed.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Mapping
from typing import Any


def functions(package: str, folder: str, file: str, declared: Mapping[str, Any]) -> Any:
    """Opens a variant's library, and returns the op with its functions as attributes.

    The `_ops.py` of every published variant with a plain library calls this: its name and arguments must stay.

    Args:
        package: The name that the variant is imported under.
        folder: The variant's.
        file: The library in it.
        declared: `op`; `signatures`, for each function the names of its result's and its arguments' types; `kernels`,
            the fields of each Triton kernel; `functions`, a "module:function" in the package that returns more.

    Raises ImportError if the library cannot be opened.
    """
    path = os.path.join(folder, file)
    try:
        library: Any = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"{file} cannot be opened: {error}") from error
    library.__file__ = path
    for name, (result, arguments) in declared["signatures"].items():
        function = library[name]
        function.restype, function.argtypes = _type(result), [_type(kind) for kind in arguments]
        setattr(library, name, function)
    return _triton_op(package, library, declared) if declared["kernels"] else _plain_op(package, library, declared)


def _triton_op(package: str, library: Any, declared: Mapping[str, Any]) -> Any:
    from opforge.builders.triton_op_builder.kernel import Kernel, with_variants
    from opforge.builders.triton_op_builder.launching import PrebuiltKernels, TritonOp

    kernels = [Kernel(**{**fields, "arguments": dict(fields["arguments"])}) for fields in declared["kernels"]]
    launcher = PrebuiltKernels(declared["op"], library, with_variants(kernels))
    return TritonOp(declared["op"], launcher, _more(package, declared, launcher), library.__file__, library)


def _plain_op(package: str, library: Any, declared: Mapping[str, Any]) -> Any:
    for name, function in _more(package, declared, library).items():
        setattr(library, name, function)
    return library


def _more(package: str, declared: Mapping[str, Any], op: Any) -> Mapping[str, Any]:
    module, _, function = declared["functions"].partition(":")
    more: Mapping[str, Any] = getattr(importlib.import_module(module, package), function)(op) if module else {}
    return more


def _type(name: str) -> Any:
    if not name:
        return None
    return ctypes.POINTER(getattr(ctypes, name[:-1])) if name.endswith("*") else getattr(ctypes, name)
