"""Lists the contents of a store. Other processes may add and remove entries meanwhile: a removed one is left out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from opforge.cache import schema
from opforge.cache.layout import VERSION, Layout
from opforge.cache.ownership import has_tag, is_own_name
from opforge.cache.records import schemas
from opforge.cache.records.entry import read_record
from opforge.cache.schema import FormatError
from opforge.fast_path.library import BUILD, RECORD

from . import pointers
from .summaries import Summaries

RECORD_PROBLEM = "its record cannot be read"
LIBRARY = ".so"


class MeasuredEntry(NamedTuple):
    """The files of one entry. Times are seconds since the epoch."""

    key: str
    op: str
    """The op's name, with which that of the library begins; empty if the folder cannot be listed."""
    size: int
    """Bytes of all its files."""
    built: float
    """When it was published."""
    used: float
    """When it was last used, as far as is known: when it was published, or a look-up last noted its use."""
    record: os.stat_result | None
    """The status of the record; None if there is none."""


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
        """Returns the object that `opforge ls --json` prints: its names are public."""
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
    """Returns the children of a folder, sorted by name; none if it does not exist, may not be read, or is a link.

    A link could lead out of the store, and what is listed may be removed.
    """
    if os.path.islink(path):
        return []
    try:
        with os.scandir(path) as scanned:
            return sorted(scanned, key=lambda child: child.name)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def own_children(layout: Layout, area: str) -> list[os.DirEntry[str]]:
    """Returns the children of a store's area whose names are those that opforge gives, sorted by name."""
    return [child for child in children(layout.path(area)) if is_own_name(area, child.name)]


def entry_folders(layout: Layout) -> list[os.DirEntry[str]]:
    """Returns the entries' folders among `own_children`, without links."""
    return [child for child in own_children(layout, "entries") if child.is_dir(follow_symlinks=False)]


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
    except (OSError, ValueError):
        return None


def build_of(layout: Layout, key: str) -> dict[str, Any] | None:
    """Returns how an entry was built, or None if that is not known."""
    try:
        build: dict[str, Any] = schema.read(os.path.join(layout.entry(key), BUILD), schemas.BUILD)
        return build
    except (OSError, FormatError):
        return None


def measured(layout: Layout, last_uses: Mapping[str, float]) -> list[MeasuredEntry]:
    """Returns the size and the times of every entry. No record is read, and nothing is written.

    `last_uses` are the entries' last uses, by the store's pointers.
    """
    folders = entry_folders(layout)
    return [entry for folder in folders if (entry := _measured(folder, last_uses.get(folder.name, 0.0)))]


def entries(layout: Layout) -> list[StoredEntry]:
    """Returns every entry of a store, by op and age, the newest first.

    New summaries are written to the store; a layer is left as it is.
    """
    summaries = Summaries(layout)
    all_measured = measured(layout, pointers.read(layout).last_uses())
    stored = [_stored(entry, layout.entry(entry.key), summaries) for entry in all_measured]
    if has_tag(layout.root):  # a layer has none: its bytes may be those of an image or a wheel
        summaries.save([entry.key for entry in stored])
    return sorted(stored, key=lambda entry: (entry.op, -entry.built))


def _stored(entry: MeasuredEntry, folder: str, summaries: Summaries) -> StoredEntry:
    key, _op, size, built, used, record = entry
    summary = summaries.get(key, record) if record else None
    if summary is None:
        return StoredEntry(key, "", "", "", "", size, built, used, 0.0, folder, RECORD_PROBLEM)
    path = os.path.join(folder, summary.file)
    return StoredEntry(
        key, summary.op, summary.abi, summary.target, summary.plan, size, built, used, summary.seconds, path
    )


def _measured(folder: os.DirEntry[str], used: float) -> MeasuredEntry | None:
    """Returns the size and the times of the entry in a folder, or None if it is being removed."""
    files, op, size, built = _file_stats(folder.path), "", 0, 0.0
    if not files:
        status = stat_of(folder.path)
        if status is None or os.access(folder.path, os.R_OK | os.X_OK):
            return None
        built = max(status.st_mtime, status.st_ctime)
    for name, file in files.items():
        size += file.st_size
        # Each file's mode is set just before the entry is published, which changes the second time.
        built = max(built, file.st_mtime, file.st_ctime)
        if name.endswith(LIBRARY):
            op = name.rpartition("-")[0]
    return MeasuredEntry(folder.name, op, size, built, max(built, used), files.get(RECORD))


def _file_stats(folder: str) -> dict[str, os.stat_result]:
    """Returns the status of each file in a folder, not following links; none if it cannot be listed."""
    try:
        return {name: os.lstat(f"{folder}/{name}") for name in os.listdir(folder)}
    except OSError:
        return {}


def areas(layout: Layout) -> list[Area]:
    """Returns the folders of a store, `index` (entry points of other packages) included; empty ones are left out."""
    folders = [*subfolders(layout.path()), *(child for child in subfolders(layout.root) if child.name != VERSION)]
    return [area for area in map(_area, folders) if area.files]


def _area(folder: os.DirEntry[str]) -> Area:
    sizes = [status.st_size for path in _files(folder.path) if (status := stat_of(path))]
    return Area(folder.name, len(sizes), sum(sizes))


def _files(folder: str) -> Iterator[str]:
    for parent, _folders, names in os.walk(folder):
        yield from (os.path.join(parent, name) for name in names)
