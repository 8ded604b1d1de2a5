"""Imports modules that lie in the working folder, as `python -m` does."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType


def search() -> None:
    """Lets imports search the working folder first."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # for a console script, sys.path[0] is the script's folder


def import_module(name: str) -> ModuleType:
    """Imports and returns a module, of the working folder or of this environment. Raises what the module raises."""
    search()
    return importlib.import_module(name)
