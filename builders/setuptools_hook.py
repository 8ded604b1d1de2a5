"""What setuptools calls for every project that is built where opforge is installed: it has to be quick and sure."""

from __future__ import annotations

import os
from typing import Any


def finalize(distribution: Any) -> None:
    """Add `build_ops` to a project whose pyproject.toml has a table [tool.opforge]; any other is left alone.

    Raises setuptools' OptionError where the table is wrong.
    """
    if not os.path.isfile("pyproject.toml"):
        return
    with open("pyproject.toml", encoding="utf-8", errors="replace") as file:
        if "opforge" not in file.read():
            return
    from setuptools.config.pyprojecttoml import load_file

    try:
        table = load_file("pyproject.toml").get("tool", {}).get("opforge")
    except (ValueError, AttributeError):
        return  # setuptools itself says what is wrong with it
    if table is not None:
        from .setuptools import from_table

        distribution.cmdclass |= from_table(table, distribution)
