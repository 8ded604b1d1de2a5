"""torch.utils.cpp_extension on opforge: `install()` gives its unmodified callers opforge's cache, locks and errors.

`load` and `load_inline` become `opforge.load` and `opforge.load_inline`; a setup script's `BuildExtension` fetches C++
extensions from the store. What opforge cannot do is left to torch, and the reason logged.
`python -m opforge.compat.cpp_extension setup.py build_ext --inplace` runs a script with all of this in place.
"""

from __future__ import annotations

import importlib
from typing import Any

from opforge.compat.rebinding import Rebound, Replacement, rebind, restore

from .jit import load_on_opforge
from .setup_command import command_on_opforge

__all__ = ["install", "uninstall"]
_done: list[Rebound] = []


def install() -> None:
    """Replace load, load_inline and BuildExtension, in modules that were imported before too. Imports torch."""
    uninstall()
    theirs: Any = importlib.import_module("torch.utils.cpp_extension")
    replacements = [
        *(Replacement(name, getattr(theirs, name), load_on_opforge(name, theirs)) for name in ("load", "load_inline")),
        Replacement("BuildExtension", theirs.BuildExtension, command_on_opforge(theirs.BuildExtension)),
    ]
    _done.extend(rebind(replacements, keeps=lambda module: module.startswith("opforge.")))


def uninstall() -> None:
    """Put torch's own functions and command back, in the modules where `install` replaced them."""
    restore(_done)
    _done.clear()
