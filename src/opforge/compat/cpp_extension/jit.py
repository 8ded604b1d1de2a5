"""torch.utils.cpp_extension's `load` and `load_inline` on opforge, with torch as the fallback."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import shlex
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from opforge.builders import jit, jit_builders, python_module
from opforge.builders.declaration import abi
from opforge.cache.current_store import NotKept, only_if_kept
from opforge.errors import BuilderError, LoadError, OpIncompatibleError, ToolchainError, ToolchainNotFoundError
from opforge.fast_path import library
from opforge.fast_path.library import LoadedOp
from opforge.foundation import tracebacks

if TYPE_CHECKING:
    from types import ModuleType

FALLBACK_ERRORS = (BuilderError, NotKept, OpIncompatibleError, ToolchainError, ToolchainNotFoundError)
"""Errors that opforge raises before it compiles anything: torch may succeed. A compile error has no fallback."""
_not_kept: list[str] = []
"""The first extension of this process that was left to torch because nothing is kept."""
FUNCTIONS = {"load": "load", "load_inline": "load_inline", "_jit_compile": "load"}
"""The functions of torch's module that are replaced, with opforge's. Projects call the last one directly too."""
_left_to_torch = threading.local()
"""Whether this thread is in a call that was left to torch."""
HOST_FLAGS = ("extra_cflags", "extra_ldflags")

log = logging.getLogger("opforge")


def load_on_opforge(name: str, torch_extension: Any, chosen_abi: str = abi.TORCH) -> Callable[..., Any]:
    """Returns the replacement for a function of FUNCTIONS, which the module `torch_extension` holds.

    It takes torch's arguments and returns what torch's function returns: the module, or the library's path if
    `is_python_module` is false. Its errors end at the caller's line. With the facade's ABI nothing is left to torch:
    a module's ABI would depend on what is installed here.
    """
    torch_function, opforge_function = getattr(torch_extension, name), getattr(jit, FUNCTIONS[name])
    signature, parameters = inspect.signature(torch_function), inspect.signature(opforge_function).parameters

    def by_torch(*args: Any, **kwargs: Any) -> Any:
        """Calls torch's function, whose own calls of what is replaced are torch's too."""
        before, _left_to_torch.value = getattr(_left_to_torch, "value", False), True
        try:
            return torch_function(*args, **kwargs)
        finally:
            _left_to_torch.value = before

    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = dict(signature.bind(*args, **kwargs).arguments)
        unknown = sorted(arguments.keys() - parameters.keys())
        try:
            if unknown:
                problem = f"{', '.join(unknown)}: opforge.{FUNCTIONS[name]} has no such parameter"
                raise BuilderError(arguments["name"], problem, "Remove it")
            nvcc_flags = () if torch_extension.IS_HIP_EXTENSION else torch_extension.COMMON_NVCC_FLAGS
            with only_if_kept():
                options = _translate(FUNCTIONS[name], arguments, nvcc_flags)
                if chosen_abi == abi.FACADE:
                    options["abi"] = abi.FACADE
                loaded = opforge_function(**options)
        except FALLBACK_ERRORS as error:
            if chosen_abi == abi.FACADE:
                raise
            log_fallback(arguments["name"], f"torch.utils.cpp_extension.{name}", error)
            return by_torch(*args, **kwargs)
        if not isinstance(loaded, LoadedOp):
            return loaded
        _warn_of_suffix(arguments["name"], loaded)
        path = loaded.__file__
        return _module(arguments["name"], path) if arguments.get("is_python_module", True) else path

    @functools.wraps(torch_function)
    def load(*args: Any, **kwargs: Any) -> Any:
        if getattr(_left_to_torch, "value", False):
            return torch_function(*args, **kwargs)
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            tracebacks.shorten(error)
            raise

    return load


def log_fallback(name: str, function: str, error: Exception) -> None:
    """Logs that an extension is left to torch. That nothing can be kept is logged once: it is so for all of them."""
    if isinstance(error, NotKept):
        if _not_kept:
            return
        _not_kept.append(name)
        name += ", as all that is not built yet,"
    log.warning("%s is left to %s: %s", name, function, error)


def _warn_of_suffix(name: str, loaded: LoadedOp) -> None:
    """Logs where the ops of an edited library are: torch's caller has only torch.ops, which keeps the first version's.

    torch itself ends the process in this place, as the namespace is registered already.
    """
    suffix = loaded.__entry__.suffix
    for namespace in library.namespaces_of.get(loaded.__entry__.key, ()):
        if namespace.endswith(suffix):
            log.warning(
                "%s: torch.ops.%s has the ops of the version that this process loaded first; those of this version are"
                " torch.ops.%s: use them, or start a new process",
                name,
                namespace.removesuffix(suffix),
                namespace,
            )


def _module(name: str, path: str) -> ModuleType:
    """Returns the empty Python module of a library of ops. Raises LoadError if it has none."""
    try:
        module = python_module.load(name, path)
    except LoadError:
        module = None
    if module is None:
        advice = "Pass is_python_module=False, and call its ops by torch.ops; or bind it with pybind"
        raise LoadError(name, path, "it is not a Python module", advice)
    return module


def _translate(function: str, arguments: dict[str, Any], nvcc_flags: Sequence[str]) -> dict[str, Any]:
    """Returns the arguments of opforge's function; `nvcc_flags` are those that torch always passes to nvcc."""
    options = {**arguments, **{name: _split(arguments[name]) for name in HOST_FLAGS if arguments.get(name)}}
    if arguments.get("extra_include_paths"):
        # A compiler ignores a folder that does not exist; a builder raises an error.
        paths = _as_list(arguments["extra_include_paths"])
        options["extra_include_paths"] = [path for path in paths if os.path.isdir(path)]
    for name, common_flags in (("extra_cuda_cflags", nvcc_flags), ("extra_sycl_cflags", ())):
        options[name] = [*common_flags, *_split(arguments.get(name) or ())]
    if arguments.get("is_python_module", True):
        options["abi"] = abi.TORCH  # a Python module is expected, whatever else the sources hold
    elif function == "load":
        sources = jit_builders.read_sources(_as_list(arguments["sources"]))
        options["abi"] = abi.STABLE if jit_builders.detect_abi(sources) == abi.STABLE else abi.TORCH
    return options


def _as_list(paths: str | Sequence[str]) -> Sequence[str]:
    return [paths] if isinstance(paths, str) else paths


def _split(flags: Sequence[str]) -> list[str]:
    """Returns the flags as separate words. torch joins them into a line that ninja and then a shell parse."""
    return [word for flag in flags for word in shlex.split(flag.replace("$$", "$"))]
