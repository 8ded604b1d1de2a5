"""Entry points of other packages, from an index that spares most processes the scan of sys.path.

For each folder of sys.path the index holds the folder's modification time and the entry points that were found there. A
folder that changed is scanned again. The index is kept in the cache folder if that exists, and is read only if nobody
else can write it. It may be lost, stale or damaged: what it lacks is scanned.
"""

from __future__ import annotations

import os
import stat
import sys
import time
import zlib
from typing import TYPE_CHECKING

from opforge import formats, settings

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

GROUPS = ("opforge.accelerators", "opforge.op_builders", "opforge.sources")
_MAX_BYTES = 1 << 20
# Two environments whose checksums are equal share a file. That is harmless, because its records are keyed by folder.
_INDEX = f"entry_points-{zlib.crc32(os.fsencode(sys.prefix)):08x}.json"
_RACY_NS = 2_000_000_000
"""A folder changed less than this long ago is not recorded: a second change could leave its coarse time the same."""


class EntryPoint:
    """One name that a distribution adds to a group."""

    __slots__ = ("group", "name", "source", "value")

    def __init__(self, group: str, name: str, value: str, source: str) -> None:
        self.group, self.name, self.value, self.source = group, name, value, source


def entry_points(group: str) -> list[EntryPoint]:
    """Returns the entry points of one of GROUPS, in the order of sys.path.

    If two distributions of one name are installed, the first one on sys.path counts, as it does for imports.
    """
    path = _index_path()
    index = _read(path)
    points: list[EntryPoint] = []
    folder_of: dict[str, str] = {}
    changed = False
    for folder in _folders():
        stamp = _stamp(folder)
        if stamp is None:
            continue
        record = index.get(folder)
        if record is None or record[0] != stamp or not _are_unchanged(record[2]):
            previous, record = record, [stamp, *_scan(folder)]
            if time.time_ns() - stamp > _RACY_NS:
                index[folder] = record
                # A new time alone is not worth writing: a folder of scripts, without packages, changes with every file.
                changed = changed or previous is None or previous[1:] != record[1:] or any(record[1:])
            else:
                index.pop(folder, None)
        for row_group, name, value, distribution, version in record[1]:
            if row_group == group and folder_of.setdefault(distribution, folder) == folder:
                points.append(EntryPoint(row_group, name, value, f"{distribution} {version}"))
    if changed and path is not None:
        _write(path, {folder: record for folder, record in index.items() if _stamp(folder) == record[0]})
    return points


def _folders() -> list[str]:
    """Returns the folders of sys.path as absolute paths, each once."""
    folders = []
    for folder in sys.path:
        try:
            folders.append(folder if folder[:1] == "/" else os.path.abspath(folder))
        except FileNotFoundError:
            continue  # the working folder was removed: nothing can be imported from below it
    return list(dict.fromkeys(folders))


def _stamp(path: str) -> int | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    if not status.st_ctime_ns % 1_000_000_000:
        from opforge.file_systems import images  # not on the path of a hit, unless the folder may be an image's

        if images.is_image(path, status):
            return time.time_ns()  # as if it had just changed: what is in another image may have the same time
    return status.st_mtime_ns


def _are_unchanged(stamps: dict[str, int | None]) -> bool:
    return all(_stamp(path) == stamp for path, stamp in stamps.items())


def _scan(folder: str) -> tuple[list[list[str]], dict[str, int | None]]:
    """Returns the folder's entry points, and the stamps of files that can change without changing the folder's.

    An entry point is [group, name, value, distribution, version]. The files are those of development installs, which
    are rewritten in place.
    """
    try:
        # importlib looks into a zip file on sys.path, so scan it as if it held a distribution.
        names = os.listdir(folder) if os.path.isdir(folder) else [".egg-info"]
    except OSError:
        return [], {}
    if not any(name.endswith((".dist-info", ".egg-info", ".egg")) for name in names):
        return [], {}
    import importlib.metadata

    stamps = {
        path: _stamp(path)
        for path in (os.path.join(folder, name, "entry_points.txt") for name in names if name.endswith(".egg-info"))
    }
    rows = []
    for distribution in importlib.metadata.distributions(path=[folder]):
        try:
            points = [point for point in distribution.entry_points if point.group in GROUPS]
            identity = [str(distribution.metadata["Name"]), str(distribution.version)] if points else []
        except Exception:  # noqa: S112  # one package's broken metadata must not hide every other package
            continue
        rows += [[point.group, point.name, point.value, *identity] for point in points]
    return rows, stamps


def _index_path() -> str | None:
    """Returns the path of this environment's index. None if there is no cache folder that only this user can write."""
    cache = settings.cache_dir()[0]
    try:
        return f"{cache}/index/{_INDEX}" if _is_private(os.stat(cache), stat.S_ISDIR) else None
    except OSError:
        return None


def _is_private(status: os.stat_result, is_kind: Any) -> bool:
    return bool(is_kind(status.st_mode)) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _read(path: str | None) -> dict[str, list[Any]]:
    if path is None:
        return {}
    import json

    try:
        if not _is_private(os.lstat(os.path.dirname(path)), stat.S_ISDIR):
            return {}
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            if not _is_private(status, stat.S_ISREG) or status.st_size > _MAX_BYTES:
                return {}
            content = json.loads(os.read(handle, status.st_size))
        finally:
            os.close(handle)
        if content["format"] != formats.ENTRY_POINTS:
            return {}
        folders: dict[str, list[Any]] = content["folders"]
        return folders if all(_is_valid(record) for record in folders.values()) else {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _is_valid(record: Any) -> bool:
    stamp, rows, stamps = record
    return (
        isinstance(stamp, int)
        and isinstance(stamps, dict)
        and all(len(row) == 5 and all(isinstance(field, str) for field in row) for row in rows)
    )


def _write(path: str, folders: Iterable[Any]) -> None:
    import json
    import tempfile

    text = json.dumps({"format": formats.ENTRY_POINTS, "folders": folders})
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if not _is_private(os.lstat(folder), stat.S_ISDIR):
            return
        handle, temporary = tempfile.mkstemp(prefix=".entry_points-", dir=folder)
    except OSError:
        return
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            pass
