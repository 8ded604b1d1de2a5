"""The library of the Hugging Face hub, which comes with an extra."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from opforge.errors import ExtraNotInstalledError

PARTS = ("constants", "errors", "hf_api", "utils")
"""The modules that are used, which the library itself imports late."""


def imported(what: str) -> Any:
    """Returns huggingface_hub, without progress bars where nobody sees them.

    Raises ExtraNotInstalledError for what needs it.
    """
    try:
        hub = importlib.import_module("huggingface_hub")
        for part in PARTS:
            importlib.import_module(f"huggingface_hub.{part}")
    except ImportError:
        raise ExtraNotInstalledError(what, "huggingface_hub", "hub") from None
    if not sys.stderr.isatty():
        hub.utils.disable_progress_bars()
    return hub
