"""Entries that packages carry: a layer inside an installed package, which its own builders find without a setting."""

from __future__ import annotations

import os
import stat
import sys

from opforge.cache.filesystem.trust import PackageLayer

FOLDER = "_opforge_ops"
"""The layer's folder, below the package's own folder."""


def layers_of(package: str) -> tuple[PackageLayer, ...]:
    """Returns the layers in an imported package; none if it carries no ops, or is no package."""
    layers = []
    for folder in getattr(sys.modules.get(package), "__path__", ()):
        root = os.path.join(folder, FOLDER)
        if os.path.isdir(root):
            # Whoever can write the package's code is trusted with its libraries: that code is running already.
            own = os.stat(folder)
            layers.append(PackageLayer(root, own.st_uid, own.st_mode & (stat.S_IWGRP | stat.S_IWOTH)))
    return tuple(layers)
