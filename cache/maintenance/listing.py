"""What a store holds. Other processes may add and remove entries meanwhile: one that is gone is left out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from opforge.cache.filesystem.files import UNREADABLE, read_json
from opforge.cache.layout import OLD_VERSIONS, VERSION, Layout
from opforge.cache.records.entry import BUILD, RECORD, read_record

from . import pointers
from .summaries import Summaries

RECORD_PROBLEM = "its record cannot be read"


class StoredEntry(NamedTuple):
    """One entry of a store. Times are seconds since the epoch."""

    key: str
    op: str
    abi: str
    target: str
    plan: str
    size: int
    """Bytes of all its files."""
    built: float
    """When it was published."""
    used: float
    """When it was last used, as far as is known: when it was published, or a look-up last noted its use."""
    seconds: float
    """How long the build took."""
    path: str
    """The library; the entry's folder if the record cannot be read."""
    problem: str = ""
    """Why its record cannot be used, or empty. The library is not checked: see `verify.verify`."""

    def to_json(self) -> dict[str, object]:
        """Returns what `opforge cache ls --json` prints of it: these names are public."""
        fields = self._asdict()
        return {"result": fields.pop("key"), **fields}


class Area(NamedTuple):
    """One folder of a store, with the number of its files and their bytes."""

    name: str
    files: int
    size: int


def subfolders(path: str) -> list[os.DirEntry[str]]:
    """Returns the folders in a folder, by name, without links; none if it cannot be listed."""
    return [child for child in children(path) if child.is_dir(follow_symlinks=False)]


def children(path: str) -> list[os.DirEntry[str]]:
    """Returns what is in a folder, by name; nothing if it does not exist, may not be read, or is a link.

    A link could lead out of the store, and what is listed may be removed.
    """
    if os.path.islink(path):
        return []
    try:
        with os.scandir(path) as scanned:
            return sorted(scanned, key=lambda child: child.name)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def stat_of(path: str) -> os.stat_result | None:
    """Returns the status of a file, not following links; None if it is gone."""
    try:
        return os.lstat(path)
    except OSError:
        return None


def record_of(layout: Layout, key: str) -> dict[str, Any] | None:
    """Returns an entry's record, or None if it is missing or is no record."""
    try:
        return read_record(layout.entry(key))
    except UNREADABLE:
        return None


def build_of(layout: Layout, key: str) -> dict[str, Any] | None:
    """Returns how an entry was built, or None if that is not known."""
    try:
        build = read_json(os.path.join(layout.entry(key), BUILD))
        return build if isinstance(build, dict) else None
    except UNREADABLE:
        return None


def entries(layout: Layout, last_uses: Mapping[str, float] | None = None) -> list[StoredEntry]:
    """Returns every entry of a store, by op and age, the newest first.

    New summaries are written to the store; a layer is left as it is. `last_uses` are the entries' last uses, if the
    caller has read the store's pointers.
    """
    used = pointers.read(layout).last_uses() if last_uses is None else last_uses
    summaries = Summaries(layout)
    folders = subfolders(layout.path("entries"))
    stored = [_stored(folder, summaries, used.get(folder.name, 0.0)) for folder in folders]
    if os.path.isdir(layout.path("plans")):  # a layer has none: its bytes may be those of an image or a wheel
        summaries.save([folder.name for folder in folders])
    return sorted((entry for entry in stored if entry), key=lambda entry: (entry.op, -entry.built))


def _stored(folder: os.DirEntry[str], summaries: Summaries, used: float) -> StoredEntry | None:
    """Returns the entry in a folder, or None if it is being removed."""
    status, files = stat_of(folder.path), _file_stats(folder.path)
    if status is None or (not files and os.access(folder.path, os.R_OK | os.X_OK)):
        return None
    built = max(status.st_mtime, status.st_ctime, *(file.st_mtime for file in files.values()))
    size = sum(file.st_size for file in files.values())
    entry = StoredEntry(folder.name, "", "", "", "", size, built, max(built, used), 0.0, folder.path, RECORD_PROBLEM)
    summary = summaries.get(folder.name, files[RECORD]) if RECORD in files else None
    if summary is None:
        return entry
    return entry._replace(
        op=summary.op,
        abi=summary.abi,
        target=summary.target,
        plan=summary.plan,
        seconds=summary.seconds,
        path=os.path.join(folder.path, summary.file),
        problem="",
    )


def _file_stats(folder: str) -> dict[str, os.stat_result]:
    """Returns the status of each file in a folder, not following links; none if it cannot be listed."""
    try:
        with os.scandir(folder) as files:
            return {file.name: file.stat(follow_symlinks=False) for file in files}
    except OSError:
        return {}


def areas(layout: Layout) -> list[Area]:
    """Returns the folders of a store, `index` (entry points of other packages) included; empty ones are left out."""
    folders = [*subfolders(layout.path()), *(child for child in subfolders(layout.root) if child.name != VERSION)]
    return [area for area in map(_area, folders) if area.files]


def old_stores(layout: Layout) -> list[Area]:
    """Returns the stores of earlier formats in the same folder. They are neither read nor changed, only counted."""
    return [_area(folder) for folder in subfolders(layout.root) if folder.name in OLD_VERSIONS]


def _area(folder: os.DirEntry[str]) -> Area:
    sizes = [status.st_size for path in _files(folder.path) if (status := stat_of(path))]
    return Area(folder.name, len(sizes), sum(sizes))


def _files(folder: str) -> Iterator[str]:
    for parent, _folders, names in os.walk(folder):
        yield from (os.path.join(parent, name) for name in names)
