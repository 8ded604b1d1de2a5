"""The requirements of a project: [tool.opforge.kernels] in pyproject.toml, or kernels.toml."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from opforge.cache import schema
from opforge.errors import KernelFormatError
from opforge.packages.form import names, toml_file, version
from opforge.packages.form.properties import BACKENDS, PLAIN_BACKENDS
from opforge.packages.form.version import Range

PYPROJECT, KERNELS = "pyproject.toml", "kernels.toml"
DEVICES = (*PLAIN_BACKENDS, *BACKENDS.values())
OWN, HUBS = ("tool", "opforge", "kernels"), ("tool", "kernels", "dependencies")
"""Tables of pyproject.toml. In the hub's, each ORG/NAME has a whole number."""
EXPECTED = 'a table of kernels with ranges, such as "acme/relu" = ">=2.1,<3"'
MARKED = schema.record({"version": schema.TEXT, "devices": schema.items(schema.choice(*DEVICES), least=1)})
"""A requirement that does not apply everywhere: a range, and what torch must be built for."""


class Required(NamedTuple):
    """The kernels that a project requires."""

    path: str
    """The file that says so."""
    kernels: tuple[tuple[str, Range], ...]
    devices: Mapping[str, tuple[str, ...]] = {}
    """Kernel -> what torch must be built for, for those that are not required everywhere."""
    is_hubs: bool = False
    """Whether the hub's own table says so, [tool.kernels.dependencies]."""


def read(folder: str) -> Required:
    """Returns the requirements of the project in a folder. Raises KernelFormatError if it states none, OSError."""
    needed = find(folder)
    if needed is None:
        problem = f"there is no [tool.opforge.kernels] in {PYPROJECT}, and no {KERNELS}"
        raise KernelFormatError(folder, problem, EXPECTED)
    return needed


def find(folder: str) -> Required | None:
    """Returns the requirements of the project in a folder; None if it has none. Raises KernelFormatError, OSError."""
    pyproject, kernels = os.path.join(folder, PYPROJECT), os.path.join(folder, KERNELS)
    if os.path.isfile(pyproject):
        table = toml_file.read(pyproject, EXPECTED)
        for path in (OWN, HUBS):
            if (named := _named(table, path)) is not None:
                return _parsed(pyproject, named, path == HUBS)
    if os.path.isfile(kernels):
        table = toml_file.read(kernels, EXPECTED)
        return _parsed(kernels, table.get("kernels", table))
    return None


def _named(table: Any, path: Sequence[str]) -> Any:
    """Returns the value at a path of names in nested tables; None if there is none."""
    for name in path:
        table = table.get(name) if isinstance(table, dict) else None
    return table


def _parsed(path: str, table: Any, is_hubs: bool = False) -> Required:
    if not isinstance(table, dict):
        raise KernelFormatError(path, f"its kernels are {ascii(table)[:100]}: expected a table", EXPECTED)
    kernels, devices = [], {}
    for name, value in table.items():
        where, kernel, numbers = f"{path}: {name}", names.check(name, path), value
        if isinstance(value, dict) and not is_hubs:
            if problem := schema.problem(value, MARKED):
                raise KernelFormatError(where, problem, 'a range, or {version = ">=2", devices = ["cuda"]}')
            devices[kernel], numbers = tuple(value["devices"]), value["version"]
        kernels.append((kernel, version.parse_range(None if numbers == "*" else numbers, where)))
    return Required(path, tuple(sorted(kernels, key=lambda kernel: kernel[0])), devices, is_hubs)
