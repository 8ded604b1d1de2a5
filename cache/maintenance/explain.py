"""Why a look-up missed: the differences between an op as it is now and the nearest stored entry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from opforge.cache import schema
from opforge.cache.filesystem.disk import Disk
from opforge.cache.keys import canonical
from opforge.cache.layout import Layout
from opforge.cache.records.inputs import Inputs
from opforge.cache.records.schemas import INPUTS

from . import listing

COMPARED_ENTRIES = 16
"""Of the entries with the fewest different components, this many of the newest have their files compared."""
DECLARED_OTHERWISE = "with other flags, defines, sources, ABI or version than are declared now"


class Difference(NamedTuple):
    """One component of the plan key: its value in the stored entry, and now. None if there is no such component."""

    component: str
    stored: Any
    now: Any


class ChangedFile(NamedTuple):
    """One file that an entry was built from. A digest is empty if there is no file."""

    path: str
    problem: str
    stored: str = ""
    now: str = ""


class Nearest(NamedTuple):
    """The stored entry with the fewest differences from what is requested."""

    entry: listing.StoredEntry
    components: tuple[Difference, ...]
    files: tuple[ChangedFile, ...]


def nearest(
    layout: Layout, op: str, components: Mapping[str, Any], root_paths: Mapping[str, str], disk: Disk
) -> Nearest | None:
    """Returns the nearest entry of the same op, or None if there is none that can be read."""
    compared = []
    for entry in listing.entries(layout):
        build = listing.build_of(layout, entry.key) if entry.op == op else None
        if build is None or entry.problem or not isinstance(build.get("components"), dict):
            continue
        compared.append((component_differences(build["components"], components), entry, build.get("inputs")))
    if not compared:
        return None
    fewest = min(len(differences) for differences, _entry, _inputs in compared)
    newest = sorted((item for item in compared if len(item[0]) == fewest), key=lambda item: -item[1].built)
    candidates = [
        Nearest(entry, tuple(differences), tuple(file_differences(inputs, root_paths, disk)))
        for differences, entry, inputs in newest[:COMPARED_ENTRIES]
    ]
    return min(candidates, key=lambda candidate: len(candidate.files))


def rejected_entries(
    layer: Layout, op: str, device: str, root_paths: Mapping[str, str], disk: Disk
) -> list[tuple[str, str]]:
    """Returns (folder, reason) of each entry that a layer holds for an op and a device, none of which was used.

    The reason is the first of the op's own files that has changed. If none has, the op is now declared differently.
    """
    rejected = []
    for folder in listing.subfolders(layer.path("entries")):  # not listing.entries, which writes: a layer is read-only
        record = listing.record_of(layer, folder.name)
        if record is None or record["op"] != op or record["target"].partition(":")[0] != device:
            continue
        changed = file_differences(record.get("inputs"), root_paths, disk)
        reason = f"it was built for {record['target']}, {DECLARED_OTHERWISE}"
        if changed:
            reason = f"{changed[0].path} {changed[0].problem}".strip()
        rejected.append((folder.path, reason))
    return rejected


def component_differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Returns the components that differ, by name. Objects are compared field by field, named `component.field`."""
    old, new = _flat(stored), _flat(json.loads(canonical(now)))
    return [
        Difference(name, old.get(name), new.get(name))
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def file_differences(inputs: Any, root_paths: Mapping[str, str], disk: Disk) -> list[ChangedFile]:
    """Returns the files that changed or went since the entry was built, and the first name that appeared.

    Hashes every file. `inputs` is the field of the record or of build.json.
    """
    if schema.problem(inputs, INPUTS):
        return [ChangedFile("", "its record does not list its inputs")]
    recorded = Inputs.from_json(inputs)
    changed = []
    for dependency in recorded.files:
        path = dependency.resolve(root_paths)
        if path is None:
            problem = f"there is no root {dependency.root!r} here"
            changed.append(ChangedFile(f"{dependency.root}/{dependency.path}", problem, dependency.digest))
            continue
        digest = disk.digest(path)
        if digest != dependency.digest:
            problem = "has changed" if digest else "no longer exists"
            changed.append(ChangedFile(path, problem, dependency.digest, digest or ""))
    if appeared := recorded.appeared(root_paths, disk):
        changed.append(ChangedFile(appeared, "has appeared, and may shadow a header", "", disk.digest(appeared) or ""))
    return changed


def _flat(components: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in components.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{field}": part for field, part in value.items()}
        else:
            flat[name] = value
    return flat
