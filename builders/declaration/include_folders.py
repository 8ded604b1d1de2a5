"""The include folders of an op and of its groups, by root."""

from __future__ import annotations

from collections.abc import Sequence

from opforge.cache.records.inputs import RootedPath

from . import kernel_roots
from .groups import SourceGroup
from .op_spec import OpSpec


def include_folders(spec: OpSpec, names: Sequence[str], first: int = 0) -> list[RootedPath]:
    """Returns include folders, by root: an absolute path is in no key, so its number stands for it.

    `first` is the number of the first one among all include folders of the op and its groups.
    """
    folders: list[RootedPath] = []
    for number, folder in enumerate(names, first):
        located = kernel_roots.locate(spec.name, [folder], spec.roots)
        is_root = kernel_roots.is_own_root(folder, spec.declared_roots)
        folders += (RootedPath(f"include{number}", ""),) if is_root else located
    return folders


def group_folders(spec: OpSpec) -> list[tuple[SourceGroup, list[RootedPath]]]:
    """Returns each group of the op with its include folders, which are numbered after those of the groups before."""
    groups, first = [], len(spec.include_dirs)
    for group in spec.groups:
        groups.append((group, include_folders(spec, group.include_dirs, first)))
        first += len(group.include_dirs)
    return groups
