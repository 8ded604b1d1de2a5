"""The lock file that a package brings: beside its `__init__.py`, or in a wheel beside the wheel's metadata."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from opforge.foundation.files import folder_names
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
    """Returns the kernel in the lock file of the calling package, `a.b` of a module in it; None if nothing names it.

    Raises KernelFormatError for a lock file that is damaged.
    """
    path = (_beside(caller) or _in_metadata(caller)) if caller else ""
    return in_file(path, name) if path else None


def in_file(path: str, name: str) -> Locked | None:
    """Returns the kernel in a lock file; None if the file does not name it. Raises KernelFormatError, OSError."""
    from opforge.packages.project import lock_file  # most packages have no lock file

    for kernel in lock_file.read(path).kernels:
        if kernel.name == name:
            return Locked(path, kernel.version, kernel.digest)
    return None


def _beside(package: str) -> str:
    """Returns the lock file beside the `__init__.py` of a package, or of the nearest one around it."""
    while package:
        for folder in _folders(package):
            path = os.path.join(folder, LOCK_FILE)
            if os.path.isfile(path):
                return path
        package = package.rpartition(".")[0]
    return ""


def _in_metadata(package: str) -> str:
    """Returns the lock file in the metadata of the wheel that has a package: others may have parts of its parent."""
    for folder in _folders(package.partition(".")[0]):
        parent = os.path.dirname(folder)
        for name in folder_names(parent):
            path = os.path.join(parent, name, LOCK_FILE)
            is_one = name.endswith(METADATA) and os.path.isfile(path)
            if is_one and _holds(os.path.join(parent, name, "RECORD"), package.replace(".", "/")):
                return path
    return ""


def _folders(package: str) -> list[str]:
    return list(getattr(sys.modules.get(package), "__path__", ()))


def _holds(record: str, package: str) -> bool:
    """Returns whether a wheel's list of files has some in the folder of the package."""
    try:
        with open(record, encoding="utf-8", errors="replace") as file:
            return any(line.startswith(f"{package}/") for line in file)
    except OSError:
        return False
