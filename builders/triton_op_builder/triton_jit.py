"""Launches kernels through Triton itself, which compiles or interprets them: for writing kernels."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import types
from collections.abc import Iterable, Sequence
from typing import Any

from opforge.builders.declaration import kernel_roots
from opforge.errors import KernelLaunchError, ToolchainNotFoundError
from opforge.foundation.fork_lock import ForkLock
from opforge.foundation.remembered_values import FlatStamps, stamps_of

from .kernel import Kernel
from .launching import Grid, not_on_a_gpu


class JitKernels:
    """The declared kernels as Triton's own functions. Raises ToolchainNotFoundError where there is no Triton."""

    def __init__(self, op: str, kernels: Iterable[Kernel], search: Sequence[kernel_roots.KernelRoot]) -> None:
        from opforge.builders.toolchains.triton import ADVICE

        try:
            importlib.import_module("triton")
        except ImportError as error:
            raise ToolchainNotFoundError("Triton", [f"the package triton ({error})"], ADVICE) from error
        self.op = op
        self._kernels = {kernel.name: kernel for kernel in kernels}
        paths = {root.name: root.path for root in search}
        names = sorted({kernel.source for kernel in self._kernels.values()})
        located = zip(names, kernel_roots.locate(op, names, search), strict=True)
        files = {name: os.path.join(paths.get(where.root, "/"), where.path) for name, where in located}
        self._modules = {name: module(path) for name, path in files.items()}
        folders = dict.fromkeys(os.path.dirname(path) for path in files.values())
        self.files = FlatStamps.of(pair for folder in folders for pair in _packages[folder][1].pairs())
        """The files that were imported: an edit of one makes other kernels."""

    def __contains__(self, name: object) -> bool:
        return name in self._kernels

    def launch(self, name: str, grid: Grid, *arguments: Any) -> None:
        """Launches the kernel: see Kernels.launch."""
        if name not in self._kernels:
            raise KernelLaunchError(self.op, name, "the builder declares no such kernel")
        kernel = self._kernels[name]
        if type(grid) is not tuple:
            grid = grid(kernel.constants)  # type: ignore[operator]
        if 0 in grid:
            return
        function = getattr(self._modules[kernel.source], kernel.function)
        while hasattr(getattr(function, "fn", None), "arg_names"):  # in @triton.autotune or @triton.heuristics
            function = function.fn
        values = dict(zip(kernel.arguments, arguments, strict=True))
        for argument, kind in kernel.arguments.items():
            value = values[argument]
            if not isinstance(value, (int, float)):
                if value.is_cpu and type(function).__name__ == "JITFunction":  # it is another one in the interpreter
                    raise not_on_a_gpu(self.op, name, value)
                value = value.data_ptr()
            if kind.endswith(":16") and value % 16:
                reason = f"{argument} was declared to be divisible by 16, and is {value}"
                raise KernelLaunchError(self.op, name, reason)
        constants = {name: _constant(value) for name, value in kernel.constants.items()}
        function[grid](**values, **constants, num_warps=kernel.warps, num_stages=kernel.stages)


def _constant(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith("dtype:"):
        return value
    import triton.language

    return getattr(triton.language, value.partition(":")[2])


_lock = ForkLock()
_numbers = itertools.count()
_packages: dict[str, tuple[str, FlatStamps]] = {}
"""Folder of kernels -> the package that was made for it, and the files that were imported, as they were then."""


def module(path: str) -> types.ModuleType:
    """Returns a file of kernels, imported as a module of a package that is made for its folder.

    After an edit of a file in it another package is made: kernels that are in use stay as they are.
    """
    folder, name = os.path.split(path)
    with _lock:
        package, files = _packages.get(folder, ("", FlatStamps()))
        if not package or stamps_of(files.paths) != files.numbers:
            package = f"opforge_kernels_{next(_numbers)}"
            sys.modules[package] = types.ModuleType(package)
            sys.modules[package].__path__ = [folder]
            importlib.invalidate_caches()
        # Python takes bytecode for that of a source of the same size and second: kernels must not come from an old one.
        writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        try:
            found = importlib.import_module(f"{package}.{name.removesuffix('.py')}")
        finally:
            sys.dont_write_bytecode = writes
        imported = [each.__file__ for key, each in [*sys.modules.items()] if key.startswith(f"{package}.")]
        paths = sorted(path for path in imported if path)
        _packages[folder] = package, FlatStamps(paths, stamps_of(paths))
        return found
