"""What a project requires: [tool.opforge.kernels] in pyproject.toml, or kernels.toml."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from opforge.errors import KernelFormatError
from opforge.packages.form import names, toml_file, version
from opforge.packages.form.version import Range

PYPROJECT, KERNELS = "pyproject.toml", "kernels.toml"
OWN, HUBS = ("tool", "opforge", "kernels"), ("tool", "kernels", "dependencies")
"""Tables of pyproject.toml. In the hub's, each ORG/NAME has a whole number."""
EXPECTED = 'a table of kernels with ranges, such as "acme/relu" = ">=2.1,<3"'


class Required(NamedTuple):
    """The kernels that a project requires."""

    path: str
    """The file that says so."""
    kernels: tuple[tuple[str, Range], ...]
    is_hubs: bool = False
    """Whether the hub's own table says so, [tool.kernels.dependencies]."""


def read(folder: str) -> Required:
    """Returns what the project in a folder requires. Raises KernelFormatError if nothing says so, OSError."""
    needed = find(folder)
    if needed is None:
        problem = f"there is no [tool.opforge.kernels] in {PYPROJECT}, and no {KERNELS}"
        raise KernelFormatError(folder, problem, EXPECTED)
    return needed


def find(folder: str) -> Required | None:
    """Returns what the project in a folder requires; None if nothing says so. Raises KernelFormatError, OSError."""
    pyproject, kernels = os.path.join(folder, PYPROJECT), os.path.join(folder, KERNELS)
    if os.path.isfile(pyproject):
        table = toml_file.read(pyproject, EXPECTED)
        for path in (OWN, HUBS):
            named = _named(table, path)
            if named is not None:
                return _parsed(pyproject, named)._replace(is_hubs=path == HUBS)
    if os.path.isfile(kernels):
        table = toml_file.read(kernels, EXPECTED)
        return _parsed(kernels, table.get("kernels", table))
    return None


def _named(table: Any, path: Sequence[str]) -> Any:
    """Returns what lies at a path of names in nested tables; None if there is nothing."""
    for name in path:
        table = table.get(name) if isinstance(table, dict) else None
    return table


def _parsed(path: str, table: Any) -> Required:
    if not isinstance(table, dict):
        raise KernelFormatError(path, f"its kernels are {ascii(table)[:100]}: expected a table", EXPECTED)
    kernels = []
    for name, value in table.items():
        where = f"{path}: {name}"
        kernels.append((names.check(name, path), version.parse_range(None if value == "*" else value, where)))
    return Required(path, tuple(sorted(kernels, key=lambda kernel: kernel[0])))
