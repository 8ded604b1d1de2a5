"""The changes since an entry was built, for an op that only the cache knows: for `opforge cache explain`.

No package declares an op of `opforge.load`, so there is no plan to compare. What its build recorded is compared with
this machine: the files, the compiler, and the user's flags.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any, NamedTuple

from opforge.builders.declaration import kernel_roots, machine
from opforge.builders.toolchains import DEVICES, TOOLCHAINS
from opforge.cache.filesystem.disk import Disk
from opforge.cache.layout import Layout
from opforge.cache.maintenance import listing
from opforge.cache.maintenance.explain import ChangedFile, Difference, component_differences, file_differences
from opforge.errors import OpforgeError
from opforge.foundation import remembered_values, settings
from opforge.foundation.remembered_values import UNREADABLE

from .machine import find_toolchain

UNKNOWN_FOLDER = (
    "the folder of its own files is not remembered here yet: load the op once more, or run this command in that folder"
)


class Changes(NamedTuple):
    """The differences from the state in which an entry was built."""

    components: tuple[Difference, ...]
    files: tuple[ChangedFile, ...]
    problem: str = ""
    """Why something could not be compared."""


def changes(layout: Layout, entry: listing.StoredEntry, versions: Collection[str] = ()) -> Changes:
    """Returns the changes since an entry was built. Hashes every file that it was built from.

    `versions` are the keys of all entries of its plan: where the files of one are, those of another may be too.
    """
    build = listing.build_of(layout, entry.key) or {}
    record = listing.record_of(layout, entry.key) or {}
    inputs, components = build.get("inputs", record.get("inputs")), build.get("components")
    differences, problem, roots = list[Difference](), "", dict[str, str]()
    try:
        identity = dict((components or {})["toolchain"])
        if (toolchain := _toolchain_like(identity, entry.target.partition(":")[0], layout)) is None:
            problem = "its compiler is not one of opforge's own, and was not compared"
        else:
            differences += component_differences({"compiler": identity}, {"compiler": dict(toolchain.identity())})
            roots |= toolchain.root_paths()
    except OpforgeError as error:
        problem = str(error)
    except UNREADABLE:  # build.json may change in each version
        problem = "how it was built is not recorded here, and was not compared"
    flags = record.get("user_flags")
    if isinstance(flags, dict):
        differences += component_differences(flags, settings.user_flags())
    roots |= _machine_roots()
    own = [(root, path) for root, path in _own_files(inputs) if root not in roots]
    own_roots = _own_roots(entry.key, versions, own) if own else {}
    if own and not own_roots:
        problem = problem or UNKNOWN_FOLDER
    roots |= own_roots
    return Changes(tuple(differences), tuple(file_differences(inputs, roots, Disk())), problem)


def _toolchain_like(identity: dict[str, str], device: str, layout: Layout) -> Any:
    """Returns the toolchain here that identifies itself by the same names; None if there is none.

    Raises what finding the toolchain of the device raises.
    """
    names = dict.fromkeys((DEVICES.get(device, ""), "triton" if "triton version" in identity else ""))
    for name in filter(None, names):
        toolchain = find_toolchain(TOOLCHAINS[name], layout)
        if dict(toolchain.identity()).keys() == identity.keys():
            return toolchain
    return None


def _machine_roots() -> dict[str, str]:
    roots = {"system": "/", "python": os.path.realpath(machine.python_include())}
    roots |= {root.name: root.path for root in (kernel_roots.OPFORGE, kernel_roots.OPFORGE_ABI)}
    torch = machine.torch_folder()
    return roots | ({"torch": torch} if torch else {})


def _own_files(inputs: Any) -> list[tuple[str, str]]:
    """Returns the root and the path of each file that no installed program brought; none for a damaged record."""
    try:
        files = [(str(root), str(path)) for root, path, *_others in inputs["files"]]
    except UNREADABLE:  # build.json may change in each version
        return []
    return [(root, path) for root, path in files if root not in kernel_roots.TRUSTED_ROOTS]


def _own_roots(key: str, versions: Collection[str], own: list[tuple[str, str]]) -> dict[str, str]:
    """Returns the folders of the op's own files, as the last look-up that led to this entry found them.

    No entry has the path of a folder: only this machine's memory of look-ups does, once the files are older than two
    seconds. Without it the files of another version are taken, or the working folder, if all of the files are there.
    """
    for remembered in _remembered_paths(key, versions):
        roots: dict[str, str] = {}
        for root in dict.fromkeys(root for root, _path in own):
            below = [path for name, path in own if name == root]
            bases = [path[: -len(below[0]) - 1] for path in remembered if path.endswith(f"/{below[0]}")]
            if whole := [base for base in bases if all(f"{base}/{path}" in remembered for path in below)]:
                roots[root] = whole[0]
        if roots:
            return roots
    here = os.getcwd()
    if all(root == kernel_roots.OWN and os.path.isfile(f"{here}/{path}") for root, path in own):
        return {kernel_roots.OWN: here}
    return {}


def _remembered_paths(key: str, versions: Collection[str]) -> list[set[str]]:
    """Returns the paths of each look-up that has led to the entry `key`, then of those that led to another version."""
    found, others = list[set[str]](), list[set[str]]()
    for folder in remembered_values.kept_folders():
        for name in os.listdir(folder):
            try:
                paths, _links, value = remembered_values.parsed(
                    remembered_values.read_file(f"{folder}/{name}", remembered_values.MAX_BYTES)
                )
                if value["key"] == key:
                    found.append(set(paths))
                elif value["key"] in versions:
                    others.append(set(paths))
            except UNREADABLE:  # a machine's own note: it may be lost, whatever it holds
                continue
    return found + others
