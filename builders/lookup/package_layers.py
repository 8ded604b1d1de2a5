"""Entries that packages ship: a layer inside an installed package, which its own builders find without any setting."""

from __future__ import annotations

import os
import stat
import sys

from opforge.cache.filesystem.trust import PackageLayer

FOLDER = "_opforge_ops"
"""Where a package's layer lies, below the package's own folder."""


def layers_of(cls: type) -> tuple[PackageLayer, ...]:
    """The layers in the package that declares a builder class; none where it ships no ops, or is no package."""
    package = sys.modules.get(cls.__module__.partition(".")[0])
    found = []
    for place in getattr(package, "__path__", ()):
        root = os.path.join(place, FOLDER)
        if os.path.isdir(root):
            # Whoever can write the package's code is trusted with its libraries: that code is running already.
            own = os.stat(place)
            found.append(PackageLayer(root, own.st_uid, own.st_mode & (stat.S_IWGRP | stat.S_IWOTH)))
    return tuple(found)
