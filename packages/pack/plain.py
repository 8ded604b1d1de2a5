"""A library of plain C functions in a package, such as a Triton op's: how `_ops.py` calls them."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opforge.accelerator.target import Target
from opforge.builders.declaration.abi import PLAIN
from opforge.errors import PackError
from opforge.packages.sources import modules
from opforge.packages.sources.project import Project

if TYPE_CHECKING:
    from opforge.builders.base import OpBuilder

MODULE = "_functions.py"
"""The file in a variant that has the Python functions of a builder without a folder of Python."""
RELEASE = re.compile(r"release (\d+)\.(\d+)")


def calls(project: Project, builder: OpBuilder) -> tuple[Mapping[str, Any] | None, str]:
    """Returns how the plain functions of a builder's library are called, None if it has none.

    With it comes the path of the Python that calls them, if that is not in the package's own. Raises PackError.
    """
    if builder.spec().abi != PLAIN or project.tvm_ffi:
        return None, ""
    functions = declared(project, builder)
    return functions, module_source(project, builder) if functions["functions"] and not project.python else ""


def check_source(project: Project, builder: OpBuilder) -> None:
    """Raises PackError if the project's op is of a kind that a variant of sources cannot hold."""
    from opforge.builders.triton import TritonOpBuilder

    if project.tvm_ffi or isinstance(builder, TritonOpBuilder):
        problem = f"its op is one of {'tvm-ffi' if project.tvm_ffi else 'Triton'}, which no variant of sources can hold"
        raise PackError(project.name, [problem], "Pack it without --with-source and `with-source`.")


def declared(project: Project, builder: OpBuilder) -> dict[str, Any]:
    """Returns the declaration of a library's functions, for JSON: see `packages/load/plain_library.py`.

    Raises PackError for types of C that cannot be written down, and for Python that is not in the package.
    """
    from opforge.builders.triton import TritonOpBuilder

    signatures = {name: _signature(project, name, value) for name, value in dict(builder.signatures).items()}
    return {
        "op": builder.name,
        "signatures": signatures,
        "kernels": [_kernel(kernel) for kernel in builder.kernels] if isinstance(builder, TritonOpBuilder) else [],
        "functions": _functions(project, builder.python_functions),
    }


def _kernel(kernel: Any) -> dict[str, Any]:
    fields = kernel._asdict()
    lists = {
        "arguments": [*map(list, kernel.arguments.items())],
        "configs": [dict(config) for config in kernel.configs],
    }
    return {**fields, "constants": dict(kernel.constants), **lists}


def _signature(project: Project, name: str, value: tuple[Any, Sequence[Any]]) -> list[Any]:
    result, arguments = value
    return [_type(project, name, result), [_type(project, name, kind) for kind in arguments]]


def _type(project: Project, function: str, kind: Any) -> str:
    """Returns the name of a type of ctypes, with a '*' for a pointer to it; empty for None."""
    if kind is None:
        return ""
    pointee = getattr(kind, "_type_", None)
    is_pointer = isinstance(pointee, type)
    named = pointee if is_pointer else kind
    text = getattr(named, "__name__", "")
    if getattr(ctypes, text, None) is not named:
        problem = f"the signature of {function!r} has {kind!r}, which a package cannot hold"
        raise PackError(project.name, [problem], "Use a type of ctypes, such as c_void_p or POINTER(c_float).")
    return f"{text}*" if is_pointer else text


def _functions(project: Project, where: str) -> str:
    """Returns where a builder's `python_functions` are in the variant, such as `.scale:bind`; empty without any."""
    module, _, function = where.partition(":")
    if not where:
        return ""
    if not project.python:
        return f".{MODULE.removesuffix('.py')}:{function}"
    inner = module.partition(".")[2]
    name = os.path.basename(os.path.normpath(project.python))
    if module.partition(".")[0] != name or not inner or not _is_in(project.python, inner):
        problem = f"python_functions is {where!r}, and the package's Python is {name!r}, which has no such module"
        raise PackError(project.name, [problem], f"Name a module of it: {name}.functions:{function}")
    return f".{inner}:{function}"


def _is_in(folder: str, module: str) -> bool:
    path = os.path.join(folder, *module.split("."))
    return os.path.isfile(f"{path}.py") or os.path.isfile(os.path.join(path, "__init__.py"))


def module_source(project: Project, builder: OpBuilder) -> str:
    """Returns the path of the file that a builder's `python_functions` name. Raises PackError if there is none."""
    module = builder.python_functions.partition(":")[0]
    path = modules.file_of(module, project.folder)
    if not path:
        try:
            found = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            found = None
        path = found.origin or "" if found else ""
    if not path.endswith(".py"):
        problem = f"python_functions is {builder.python_functions!r}, and {module!r} is not a file of Python here"
        raise PackError(project.name, [problem], "Put it beside the builder, or into the package's own Python.")
    return path


def backend_version(project: Project, target: Target) -> str:
    """Returns the version of CUDA or ROCm that the code in a Triton op's library needs, such as 12.8.

    Of CUDA it is that of the assembler that Triton brings; code for AMD's GPUs has no version, and the label needs
    one: it is that of the installed torch. Raises PackError without it. Empty for the host.
    """
    if target.device == "cuda":
        return max((_assembler(arch) for arch in target.arch if arch != "ptx"), key=_numbers, default="")
    if target.device != "hip":
        return ""
    import torch

    if not torch.version.hip:
        problem = f"the label of a variant for {target} names a version of ROCm, and torch here is not built for it"
        raise PackError(project.name, [problem], "Pack it where a torch for ROCm is installed.")
    return str(torch.version.hip)


def _assembler(arch: str) -> str:
    from triton.backends.nvidia import compiler

    found = RELEASE.search(compiler.get_ptxas_version(int(re.sub(r"\D", "", arch))))
    return f"{found[1]}.{found[2]}" if found else ""


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part)
