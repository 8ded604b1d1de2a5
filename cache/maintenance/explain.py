"""Why a look-up missed: what differs between what is wanted now and the nearest entry that is stored."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from opforge.cache.filesystem.disk import Disk
from opforge.cache.keys import canonical
from opforge.cache.layout import Layout
from opforge.cache.records.inputs import Inputs

from . import listing

LOOKED_AT = 16
"""Of entries that differ in equally many components, so many of the newest have their files compared."""

DECLARED = "with other flags, defines, sources, ABI or version than are declared now"


class Difference(NamedTuple):
    """One component of the plan key: its value in the stored entry, and now. None where there is no such component."""

    component: str
    stored: Any
    now: Any


class ChangedFile(NamedTuple):
    """One file that an entry was built from. A digest is empty where there is no file."""

    path: str
    problem: str
    stored: str = ""
    now: str = ""


class Nearest(NamedTuple):
    """The stored entry that needs the fewest changes to be the one that is wanted."""

    entry: listing.StoredEntry
    components: tuple[Difference, ...]
    files: tuple[ChangedFile, ...]


def nearest(
    layout: Layout, op: str, components: Mapping[str, Any], roots: Mapping[str, str], disk: Disk
) -> Nearest | None:
    """The nearest entry of the same op, or None where there is none that can be read."""
    compared = []
    for stored in listing.entries(layout):
        manifest = listing.read_manifest(layout, stored.key) if stored.op == op else None
        if manifest is None or stored.problem or not isinstance(manifest.get("components"), dict):
            continue
        compared.append((component_differences(manifest["components"], components), stored, manifest.get("inputs")))
    if not compared:
        return None
    fewest = min(len(differences) for differences, _stored, _inputs in compared)
    newest = sorted((one for one in compared if len(one[0]) == fewest), key=lambda one: -one[1].built)
    found = [
        Nearest(stored, tuple(differences), tuple(file_differences(inputs, roots, disk)))
        for differences, stored, inputs in newest[:LOOKED_AT]
    ]
    return min(found, key=lambda one: len(one.files))


def rejected_entries(
    layout: Layout, op: str, device: str, roots: Mapping[str, str], vouched: Collection[str], disk: Disk
) -> list[tuple[str, str]]:
    """The entries of this op for this device, each with the first of its own files that has changed.

    Where none has, the op is declared in another way than it was. Files below the roots in `vouched` may differ.
    """
    found = []
    for folder in listing.subfolders(layout.path("entries")):  # nothing is written beside them: it is a layer
        manifest = listing.read_manifest(layout, folder.name) or {}
        binary = manifest.get("binary")
        if not isinstance(binary, dict) or binary.get("op") != op:
            continue
        target = str(binary.get("target"))
        if target.partition(":")[0] == device:
            own = file_differences(manifest.get("inputs"), roots, disk, vouched)
            problem = f"{own[0].path} {own[0].problem}".strip() if own else f"it was built for {target}, {DECLARED}"
            found.append((folder.path, problem))
    return found


def component_differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """The components that differ, by name; those that are objects are compared field by field, as `name.field`."""
    old, new = _flat(stored), _flat(json.loads(canonical(now)))
    return [
        Difference(name, old.get(name), new.get(name))
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def file_differences(
    inputs: Any, roots: Mapping[str, str], disk: Disk, vouched: Collection[str] = ()
) -> list[ChangedFile]:
    """The files that changed or went since the entry was built, and the first name that appeared. Hashes every file
    that is not below a root in `vouched`."""
    try:
        known = Inputs.from_json(inputs).without(vouched)
    except (KeyError, TypeError, ValueError):
        return [ChangedFile("", "its manifest does not tell what it was built from")]
    found = []
    for dependency in known.files:
        path = dependency.resolve(roots)
        if path is None:
            problem = f"there is no root {dependency.root!r} here"
            found.append(ChangedFile(f"{dependency.root}/{dependency.path}", problem, dependency.digest))
            continue
        digest = disk.digest(path)
        if digest != dependency.digest:
            problem = "has changed" if digest else "is gone"
            found.append(ChangedFile(path, problem, dependency.digest, digest or ""))
    appeared = known.appeared(roots, disk)
    if appeared:
        found.append(ChangedFile(appeared, "has appeared, and may shadow a header", "", disk.digest(appeared) or ""))
    return found


def _flat(components: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in components.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{field}": part for field, part in value.items()}
        else:
            flat[name] = value
    return flat
