"""What setuptools calls for every project that is built where opforge is installed: it has to be quick and sure."""

from __future__ import annotations

import os
from typing import Any

WHEEL_COMMAND = "setuptools.command.bdist_wheel"
"""Which older releases leave to the package wheel."""


def finalize(distribution: Any) -> None:
    """Add `build_ops` to a project whose pyproject.toml has a table [tool.opforge]; any other is left alone.

    Raises setuptools' OptionError where the table is wrong, or setuptools too old.
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
        try:
            from .setuptools import from_table
        except ModuleNotFoundError as error:
            if error.name != WHEEL_COMMAND:
                raise
            import setuptools

            told = (
                f"opforge: to put ops into a wheel takes setuptools 70.1 or newer, and this is {setuptools.__version__}"
            )
            raise setuptools.errors.OptionError(f"{told}. Install it by: pip install --upgrade setuptools.") from error
        distribution.cmdclass |= from_table(table, distribution)
