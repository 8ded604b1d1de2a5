"""torch.utils.cpp_extension on opforge: `install()` gives its unmodified callers opforge's cache, locks and errors.

`load` and `load_inline` become `opforge.load` and `opforge.load_inline`, and `_jit_compile`, which projects call too,
`opforge.load`. A setup script's `BuildExtension` fetches C++
and CUDA extensions from the store. What opforge cannot build is left to torch, and the reason is logged.
`python -m opforge.compat.cpp_extension setup.py build_ext --inplace` runs a script after `install()`.
"""

from __future__ import annotations

import importlib
from typing import Any

from opforge.builders.declaration.abi import FACADE, TORCH
from opforge.compat.rebinding import Rebound, Replacement, rebind, restore

from .jit import FUNCTIONS, load_on_opforge
from .setup_command import command_on_opforge

__all__ = ["install", "uninstall"]
_rebound: list[Rebound] = []


def install(abi: str = TORCH) -> None:
    """Replaces load, load_inline and BuildExtension, also in modules that were imported before. Imports torch.

    Args:
        abi: "torch-facade" compiles what `load` and `load_inline` take on the facade of torch's headers. Nothing is
            left to torch then, and BuildExtension, which has a variable of its own for that, is not replaced.

    Raises:
        ValueError: `abi` is neither "torch" nor "torch-facade".
    """
    if abi not in (TORCH, FACADE):
        raise ValueError(f"install: abi is {abi!r}, expected {TORCH!r} or {FACADE!r}")
    uninstall()
    torch_extension: Any = importlib.import_module("torch.utils.cpp_extension")
    command = torch_extension.BuildExtension
    replacements = [
        Replacement(name, getattr(torch_extension, name), load_on_opforge(name, torch_extension, abi))
        for name in FUNCTIONS
    ]
    if abi == TORCH:
        replacements.append(Replacement("BuildExtension", command, command_on_opforge(command, command)))
    _rebound.extend(rebind(replacements, keeps=lambda module: module.startswith("opforge.")))


def uninstall() -> None:
    """Restores torch's functions and command in the modules in which `install` replaced them."""
    restore(_rebound)
    _rebound.clear()
