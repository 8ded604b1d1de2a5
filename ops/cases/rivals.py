"""DeepSpeed as a contender, where it is installed."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from typing import Any

from opforge import settings

from .form import MissingError, Place

DEEPSPEED, TORCH = "DeepSpeed", "torch"


def deepspeed(place: Place, module: str) -> Any:
    """Imports a module of DeepSpeed and returns it. What it prints goes to standard error.

    Raises:
        MissingError: DeepSpeed is not installed, must not be measured, or fails.
    """
    if place.quick:
        raise MissingError("not with --quick: it compiles its op first, which takes half a minute")
    if settings.deepspeed() is not None:
        raise MissingError("OPFORGE_DEEPSPEED is set, so its ops would be opforge's: unset it")
    if importlib.util.find_spec("deepspeed") is None:
        raise MissingError("not installed: pip install --no-build-isolation 'opforge[deepspeed]'")
    with contextlib.redirect_stdout(sys.stderr):
        return importlib.import_module(module)
