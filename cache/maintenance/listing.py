"""What a store holds. Entries may come and go meanwhile: one that is gone is left out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from opforge.cache.filesystem.files import read_json
from opforge.cache.layout import VERSION, Layout
from opforge.cache.records.entry import MANIFEST

from .summaries import Summaries

UNREADABLE = "its manifest cannot be read"


class StoredEntry(NamedTuple):
    """One entry of a store. Times are seconds since the epoch."""

    key: str
    op: str
    abi: str
    target: str
    plan: str
    size: int
    """Bytes of the library and its manifest."""
    built: float
    """When it was published."""
    used: float
    """The newest sign of use: when it was published, or when a ticket of it was last written."""
    seconds: float
    """How long the build took."""
    path: str
    """The library; the entry's folder where the manifest does not tell."""
    problem: str = ""
    """Why its manifest cannot be used, or empty. Nothing is said of the library: see `verify.verify`."""

    def to_json(self) -> dict[str, object]:
        """Returns what `opforge cache ls --json` prints of it: these names are public."""
        fields = self._asdict()
        return {"result": fields.pop("key"), **fields}


class Area(NamedTuple):
    """One folder of a store, with how many files it holds and their bytes."""

    name: str
    files: int
    size: int


def subfolders(path: str) -> list[os.DirEntry[str]]:
    """The real folders in a folder, by name; none where it cannot be listed."""
    return [one for one in listed(path) if one.is_dir(follow_symlinks=False)]


def listed(path: str) -> list[os.DirEntry[str]]:
    """What a folder holds, by name; nothing where it does not exist, or is somebody else's."""
    try:
        with os.scandir(path) as found:
            return sorted(found, key=lambda one: one.name)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def stat_of(path: str) -> os.stat_result | None:
    """What lstat says, or None where there is nothing any more."""
    try:
        return os.lstat(path)
    except OSError:
        return None


def read_manifest(layout: Layout, result: str) -> dict[str, Any] | None:
    """An entry's manifest, or None where it is missing or is no manifest."""
    try:
        manifest = read_json(os.path.join(layout.entry(result), MANIFEST))
        return manifest if isinstance(manifest, dict) and isinstance(manifest["binary"], dict) else None
    except (OSError, ValueError, KeyError, RecursionError):
        return None


def entry_key_of(name: str) -> str:
    """The result that a ticket of this file name belongs to; empty for any other file."""
    result, dash, place = name.partition("-")
    return result if dash and place.endswith(".json") else ""


def last_uses(layout: Layout) -> dict[str, float]:
    """For each result that has tickets, when the newest of them was written."""
    newest: dict[str, float] = {}
    for plan in subfolders(layout.path("plans")):
        for ticket in listed(plan.path):
            result, found = entry_key_of(ticket.name), stat_of(ticket.path)
            if result and found:
                newest[result] = max(newest.get(result, 0.0), found.st_mtime)
    return newest


def entries(layout: Layout) -> list[StoredEntry]:
    """Every entry of a store, by op and age, the newest first."""
    used, summaries = last_uses(layout), Summaries(layout)
    folders = subfolders(layout.path("entries"))
    found = [_stored(folder, summaries, used.get(folder.name, 0.0)) for folder in folders]
    summaries.save([folder.name for folder in folders])
    return sorted((one for one in found if one), key=lambda one: (one.op, -one.built))


def _stored(folder: os.DirEntry[str], summaries: Summaries, used: float) -> StoredEntry | None:
    itself = stat_of(folder.path)
    files = {file.name: found for file in listed(folder.path) if (found := stat_of(file.path))}
    if itself is None or (not files and os.access(folder.path, os.R_OK | os.X_OK)):
        return None  # it is being removed
    built = max(itself.st_mtime, itself.st_ctime, *(found.st_mtime for found in files.values()))
    size = sum(found.st_size for found in files.values())
    unknown = StoredEntry(folder.name, "", "", "", "", size, built, max(built, used), 0.0, folder.path, UNREADABLE)
    told = summaries.of(folder.name, files[MANIFEST]) if MANIFEST in files else None
    if told is None:
        return unknown
    return unknown._replace(
        op=told.op,
        abi=told.abi,
        target=told.target,
        plan=told.plan,
        seconds=told.seconds,
        path=os.path.join(folder.path, told.file),
        problem="",
    )


def areas(layout: Layout) -> list[Area]:
    """What each folder of a store takes, `index` (entry points of other packages) included; empty ones are left out."""
    roots = [*subfolders(layout.path()), *(one for one in subfolders(layout.root) if one.name != VERSION)]
    counted = []
    for folder in roots:
        sizes = [found.st_size for path in _files(folder.path) if (found := stat_of(path))]
        if sizes:
            counted.append(Area(folder.name, len(sizes), sum(sizes)))
    return counted


def _files(folder: str) -> Iterator[str]:
    for place, _folders, names in os.walk(folder):
        yield from (os.path.join(place, name) for name in names)
