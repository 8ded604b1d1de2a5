"""Finds out anew which files are a package's, after a list of packages has changed."""

from __future__ import annotations

import os
from collections.abc import Mapping

from opforge.cache.filesystem.packages import DIST_INFO, SYSTEM, PackageFiles

from .inputs import Inputs, RootedPath


def stamp_file(package: str, path: str, root: str, root_paths: Mapping[str, str]) -> RootedPath:
    """Returns the stamp file of a package with a file below `root`. A wheel's moves with the root."""
    base = "system" if package == SYSTEM else root
    return RootedPath(base, os.path.relpath(path, root_paths[base]))


def reassigned(inputs: Inputs, root_paths: Mapping[str, str], packages: PackageFiles) -> Inputs:
    """Returns inputs whose files belong to the packages that list them now.

    A file that was a package's may have been replaced by the user's own since: its own stamp must be compared from now
    on. An upgraded wheel has another list.
    """
    others = {tree: path for tree, path in inputs.trusted_trees if tree != SYSTEM and not tree.endswith(DIST_INFO)}
    trees, files = dict(others), []
    for file in inputs.files:
        path = file.resolve(root_paths)
        if file.tree and file.tree not in others and path:
            listed = packages.find(path)
            file = file._replace(tree=listed.package if listed else "")
            if listed and listed.package not in trees:
                trees[listed.package] = stamp_file(listed.package, listed.stamp_file, file.root, root_paths)
        files.append(file)
    packages.save()
    return inputs._replace(files=tuple(files), trusted_trees=tuple(sorted(trees.items())))
