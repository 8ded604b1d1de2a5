"""The hook that setuptools calls for every project, if opforge is installed: fast, and harmless to other projects."""

from __future__ import annotations

import os
from typing import Any

from .project_ops import BACKEND, KERNELS

WHEEL_COMMAND = "setuptools.command.bdist_wheel"
"""A module that is missing in older releases of setuptools, which leave it to the package wheel."""


def finalize(distribution: Any) -> None:
    """Adds `build_ops` to a project whose pyproject.toml has a table [tool.opforge]; ignores all other projects.

    Raises setuptools' OptionError if the table is wrong or setuptools is too old.
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
        return  # setuptools itself reports what is wrong with the file
    if isinstance(table, dict) and KERNELS in table:  # beside the ops that the wheel carries, or without any
        table = {name: value for name, value in table.items() if name != KERNELS} or None
    if isinstance(table, dict) and BACKEND in table:
        return  # opforge.backend puts the ops into the wheel that setuptools makes
    if table is not None:
        try:
            from .setuptools import from_table
        except ModuleNotFoundError as error:
            if error.name != WHEEL_COMMAND:
                raise
            import setuptools

            message = (
                f"opforge: setuptools is {setuptools.__version__}, and building ops into a wheel takes 70.1 or newer."
                " Install it by: pip install --upgrade setuptools."
            )
            raise setuptools.errors.OptionError(message) from error
        distribution.cmdclass |= from_table(table, distribution)


finalize.order = 1  # type: ignore[attr-defined]
"""After the hooks of those who add extension modules: the wheel's tag is that of what these and the ops need."""
