"""Packages whose public names are imported on first use (PEP 562), so that importing the package costs little."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns a package's `__getattr__` and `__dir__`.

    `modules` has, for each public name, the module below the package in which it is defined.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)  # the next use does not call this function
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get, listed
