"""The lock file that a package brings: beside its `__init__.py`, or in a wheel beside the wheel's metadata."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from opforge.packages.form.version import Range, Version, exactly
from opforge.packages.installed.releases import Installed
from opforge.packages.project import LOCK_FILE

METADATA = ".dist-info"


class Locked(NamedTuple):
    """The kernel in the calling package's lock file."""

    path: str
    version: Version
    digest: str

    @property
    def numbers(self) -> Range:
        """The range that holds the locked version alone."""
        return exactly(self.version)

    def allows(self, release: Installed) -> bool:
        """Returns whether an installed release is the one that was locked."""
        return release.version == self.version and (not self.digest or release.digest == self.digest)

    def objection(self, release: Installed) -> str:
        """Returns why it is not."""
        if release.version != self.version:
            return f"{self.path} says {self.version}"
        return f"{self.path} has another digest for {self.version}"


def of(name: str, caller: str) -> Locked | None:
    """Returns the kernel in the calling package's lock file; None if there is no file, or it does not name the kernel.

    Raises KernelFormatError for a lock file that is damaged.
    """
    top = caller.partition(".")[0]
    path = _path(top) if top else ""
    return in_file(path, name) if path else None


def in_file(path: str, name: str) -> Locked | None:
    """Returns the kernel in a lock file; None if the file does not name it. Raises KernelFormatError, OSError."""
    from opforge.packages.project import lock_file  # most packages have no lock file

    for kernel in lock_file.read(path).kernels:
        if kernel.name == name:
            return Locked(path, kernel.version, kernel.digest)
    return None


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
