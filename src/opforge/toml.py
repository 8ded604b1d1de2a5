"""Python's parser of TOML: its own since 3.11, the package tomli before."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def parser(what: str) -> Any:
    """Returns the module that parses TOML. Raises ExtraNotInstalledError, whose text begins with `what`."""
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        return importlib.import_module(name)
    except ImportError as error:
        from opforge.errors import ExtraNotInstalledError

        raise ExtraNotInstalledError(what, name, "packages") from error
