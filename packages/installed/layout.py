"""Where installed packages lie.

    ROOT/kernels/names/ORG/NAME/VERSION.json    a release that is installed: its variants, with their receipts
    ROOT/kernels/trees/DIGEST/                  the files of a variant, named by their digest, never changed
    ROOT/kernels/staging/, locks/               installations in progress; locks

ROOT is a folder of the environment (`share/opforge` below sys.prefix) or of the user. It is also a layer: the libraries
of installed packages are entries there, which `.load()` finds.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from opforge.foundation import settings

PART = "kernels"


class Root(NamedTuple):
    """A folder in which packages are installed."""

    path: str
    scope: str
    """environment, user, or folder: one that was named."""

    def join(self, *parts: str) -> str:
        """Returns a path below the root's packages."""
        return os.path.join(self.path, PART, *parts)

    def release(self, name: str, version: str) -> str:
        """Returns the file of an installed release."""
        return self.join("names", *name.split("/"), f"{version}.json")

    def tree(self, digest: str) -> str:
        """Returns the folder of a variant's files."""
        return self.join("trees", digest)


def environment_root() -> Root:
    """Returns the folder of this Python environment."""
    return roots()[-2]


def user_root() -> Root:
    """Returns the folder of the user."""
    return roots()[-1]


def roots() -> list[Root]:
    """Returns the folders in which packages are looked for, in order: named ones, the environment's, the user's."""
    return [Root(*folder) for folder in settings.kernel_folders()]
