"""Kernel roots: named folders that hold sources and headers, ours or another package's, read where they lie."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from opforge.cache.inputs import Located
from opforge.errors import SourceNotFoundError

OWN = "own"
"""The root of a builder's own folder. Its name, not its path, is part of a key."""


def is_own(root: str) -> bool:
    """Whether this is the name of a root that belongs to one op alone: its own folder, or an include folder of it."""
    return root == OWN or root.startswith("include")


class KernelRoot(NamedTuple):
    """A folder of kernels. `name` stands for it in keys; `include` is where its headers lie, below it."""

    name: str
    path: str
    include: str = "include"


def package_root(name: str, package: str, folder: str = "csrc", include: str = "include") -> KernelRoot:
    """The kernel root `folder` inside an installed package, which is located but not imported.

    Raises SourceNotFoundError where the package or the folder is missing.
    """
    import importlib.util

    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    for place in places:
        path = os.path.join(place, folder)
        if os.path.isdir(path):
            return KernelRoot(name, os.path.realpath(path), include)
    raise SourceNotFoundError(name, f"{package}/{folder}", places or [f"(the package {package} is not installed)"])


# In a checkout the folder `ops` lies beside this one, in a wheel inside the same package: one level up either way.
OPFORGE = KernelRoot(
    "opforge", os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "ops", "csrc")
)


def folder_of(cls: type) -> str:
    """The folder of the file that defines a builder class; the working folder for one from a prompt or a notebook."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return os.path.abspath(os.path.dirname(file)) if file else os.getcwd()


def locate(op: str, names: Sequence[str], roots: Iterable[KernelRoot]) -> tuple[Located, ...]:
    """Each name as the first root that has it, in the roots' order. Raises SourceNotFoundError, naming all of them."""
    roots = tuple(roots)
    found = []
    for name in names:
        if os.path.isabs(name):
            found.append(_below(op, os.path.normpath(name), roots))
            continue
        for root in roots:
            if os.path.exists(os.path.join(root.path, name)):
                found.append(Located(root.name, os.path.normpath(name)))
                break
        else:
            raise SourceNotFoundError(op, name, [root.path for root in roots])
    return tuple(found)


def _below(op: str, path: str, roots: tuple[KernelRoot, ...]) -> Located:
    if not os.path.exists(path):
        raise SourceNotFoundError(op, path, [os.path.dirname(path)])
    holding = [root for root in roots if path == root.path or path.startswith(root.path.rstrip(os.sep) + os.sep)]
    if not holding:
        return Located("system", path.lstrip(os.sep))
    nearest = max(holding, key=lambda root: len(root.path))
    return Located(nearest.name, os.path.relpath(path, nearest.path))
