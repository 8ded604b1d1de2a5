"""Packages whose public names are imported at their first use (PEP 562), so that importing the package is cheap."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def names(
    package: str, modules: Mapping[str, str], parent: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns a package's `__getattr__` and `__dir__`.

    `modules` maps each public name to the module that defines it, relative to `parent`: by default the package.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{parent or package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)  # the next access does not call __getattr__
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get, list_names
