"""Imports modules that lie in the working folder, as `python -m` does."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType


@contextlib.contextmanager
def searched() -> Iterator[None]:
    """Lets imports search the working folder first, from now on.

    What modules print in this block goes to standard error: standard output may be one JSON document.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # for a console script, sys.path[0] is the script's folder
    with contextlib.redirect_stdout(sys.stderr):
        yield


def import_module(name: str) -> ModuleType:
    """Imports and returns a module, of the working folder or of this environment. Raises what the module raises."""
    with searched():
        return importlib.import_module(name)
