"""torch.utils.cpp_extension's `load` and `load_inline`, answered by opforge or, with a logged reason, by torch."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from opforge.builders import jit, jit_sources
from opforge.builders.loader import LoadedOp
from opforge.builders.spec import abi
from opforge.errors import BuilderError, LoadError, OpIncompatibleError, ToolchainError, ToolchainNotFoundError

REFUSALS = (BuilderError, OpIncompatibleError, ToolchainError, ToolchainNotFoundError)
"""What opforge raises before anything is compiled: torch may do better. A compile error is an answer, and stays."""
SUFFIXES = {"cuda": (".cu", ".cuh", ".hip"), "sycl": (".sycl",)}
HOST_FLAGS = ("extra_cflags", "extra_ldflags")

log = logging.getLogger("opforge")


def load_on_opforge(name: str, theirs: Any) -> Callable[..., Any]:
    """Give the function that takes the place of torch's `load` or `load_inline`, which `theirs` holds.

    It takes and gives what torch's does: the module, or the library's path where `is_python_module` is false.
    """
    original, ours = getattr(theirs, name), getattr(jit, name)
    signature, known = inspect.signature(original), inspect.signature(ours).parameters

    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        given = dict(signature.bind(*args, **kwargs).arguments)
        unknown = sorted(given.keys() - known.keys())
        try:
            if unknown:
                raise BuilderError(given["name"], f"opforge.{name} knows no {', '.join(unknown)}", "Leave it out")
            found = ours(**_translated(name, given, () if theirs.IS_HIP_EXTENSION else theirs.COMMON_NVCC_FLAGS))
        except REFUSALS as refusal:
            log.warning("%s is left to torch.utils.cpp_extension.%s: %s", given["name"], name, refusal)
            return original(*args, **kwargs)
        if not isinstance(found, LoadedOp):
            return found
        if given.get("is_python_module", True):
            advice = "Pass is_python_module=False, and call its ops by torch.ops; or bind it with pybind"
            raise LoadError(given["name"], found.path, "it is no Python module", advice)
        return found.path

    return load


def _translated(function: str, given: dict[str, Any], for_nvcc: Sequence[str]) -> dict[str, Any]:
    """The arguments as opforge's function takes them; `for_nvcc` are the flags that torch gives nvcc unasked."""
    options = {**given, **{flags: _words(given[flags]) for flags in HOST_FLAGS if given.get(flags)}}
    if given.get("extra_include_paths"):
        # A folder that does not exist is nothing to a compiler, and an error to a builder.
        options["extra_include_paths"] = [path for path in _paths(given["extra_include_paths"]) if os.path.isdir(path)]
    for kind, common in (("cuda", for_nvcc), ("sycl", ())):
        # torch passes these to a compiler of device code alone; callers give them for all their extensions alike.
        flags = options.pop(f"extra_{kind}_cflags", None) or ()
        if _has_code(function, given, kind):
            options[f"extra_{kind}_cflags"] = [*common, *_words(flags)]
    if given.get("is_python_module", True):
        options["abi"] = abi.TORCH  # a Python module is wanted, whatever else the sources hold
    elif function == "load":
        stable = jit_sources.detect_abi(jit_sources.read_sources(_paths(given["sources"]))) == abi.STABLE
        options["abi"] = abi.STABLE if stable else abi.TORCH
    return options


def _has_code(function: str, given: dict[str, Any], kind: str) -> bool:
    """Whether there is code for CUDA ("cuda") or for SYCL ("sycl")."""
    if given.get(f"with_{kind}") or given.get(f"{kind}_sources"):
        return True
    return function == "load" and any(str(path).endswith(SUFFIXES[kind]) for path in _paths(given["sources"]))


def _paths(sources: str | Sequence[str]) -> Sequence[str]:
    return [sources] if isinstance(sources, str) else sources


def _words(flags: Sequence[str]) -> list[str]:
    """The flags as separate words: torch joins them into a line that ninja and then a shell read."""
    return [word for flag in flags for word in shlex.split(flag.replace("$$", "$"))]
