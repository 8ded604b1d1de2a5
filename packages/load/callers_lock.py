"""The lock file that a package brings: beside its `__init__.py`, or in a wheel beside the wheel's metadata."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from opforge.packages.project import LOCK_FILE

if TYPE_CHECKING:
    from opforge.packages.project.lock_file import LockedKernel

METADATA = ".dist-info"


def kernels(package: str) -> Iterator[tuple[str, LockedKernel]]:
    """Yields the kernels in the lock file of an imported package, with the file's path. Raises KernelFormatError."""
    path = _path(package)
    if path:
        from opforge.packages.project import lock_file  # most packages have no lock file

        for kernel in lock_file.read(path).kernels:
            yield path, kernel


def _path(package: str) -> str:
    folders = list(getattr(sys.modules.get(package), "__path__", ()))
    for folder in folders:
        beside = os.path.join(folder, LOCK_FILE)
        if os.path.isfile(beside):
            return beside
        parent = os.path.dirname(folder)
        try:
            names = [name for name in os.listdir(parent) if name.endswith(METADATA)]
        except OSError:
            continue
        for name in names:
            path = os.path.join(parent, name, LOCK_FILE)
            if os.path.isfile(path) and _holds(os.path.join(parent, name, "RECORD"), package):
                return path
    return ""


def _holds(record: str, package: str) -> bool:
    """Returns whether a wheel's list of files names the package."""
    try:
        with open(record, encoding="utf-8", errors="replace") as file:
            return any(line.startswith(f"{package}/") for line in file)
    except OSError:
        return False
