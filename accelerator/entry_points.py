"""Entry points of other packages, from an index that spares most processes the scan.

The index holds, for each folder of sys.path, its modification time and what was found there; a folder that changed is
scanned again. It lives in the cache folder where there is one already, is read only if it is ours alone, and may be
lost, stale or damaged without harm: what is missing from it is found the long way.
"""

from __future__ import annotations

import os
import stat
import sys
import time
import zlib
from typing import TYPE_CHECKING

from opforge import settings

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

GROUPS = ("opforge.accelerators", "opforge.op_builders")
_FORMAT = 1
_LONGEST = 1 << 20
# Two environments that meet in one name share a file, which is harmless: it is keyed by folders.
_INDEX = f"entry_points-{zlib.crc32(os.fsencode(sys.prefix)):08x}.json"
_YOUNG_NS = 2_000_000_000
"""A folder changed less than this ago may change again within the same tick of its clock: it is not remembered."""


class EntryPoint:
    """One name that a distribution adds to a group."""

    __slots__ = ("group", "name", "source", "value")

    def __init__(self, group: str, name: str, value: str, source: str) -> None:
        self.group, self.name, self.value, self.source = group, name, value, source


def entry_points(group: str) -> list[EntryPoint]:
    """Give the entry points of one of GROUPS, in the order of sys.path; where two distributions of one name are
    installed, the first counts, as it does for imports.
    """
    name = _index_path()
    index = _read(name)
    found: list[EntryPoint] = []
    seen: dict[str, str] = {}
    learned = False
    for folder in _folders():
        stamp = _stamp(folder)
        if stamp is None:
            continue
        known = index.get(folder)
        if known is None or known[0] != stamp or not _unchanged(known[2]):
            before, known = known, [stamp, *_scan(folder)]
            if time.time_ns() - stamp > _YOUNG_NS:
                index[folder] = known
                # A script's own folder changes with each file that is put there, and has nothing to tell.
                learned = learned or before is None or before[1:] != known[1:] or any(known[1:])
            else:
                index.pop(folder, None)
        for in_group, entry, value, distribution, version in known[1]:
            if in_group == group and seen.setdefault(distribution, folder) == folder:
                found.append(EntryPoint(in_group, entry, value, f"{distribution} {version}"))
    if learned and name is not None:
        _write(name, {folder: known for folder, known in index.items() if _stamp(folder) == known[0]})
    return found


def _folders() -> list[str]:
    return list(dict.fromkeys(folder if folder[:1] == "/" else os.path.abspath(folder) for folder in sys.path))


def _stamp(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def _unchanged(stamps: dict[str, int | None]) -> bool:
    return all(_stamp(path) == stamp for path, stamp in stamps.items())


def _scan(folder: str) -> tuple[list[list[str]], dict[str, int | None]]:
    """Give [group, name, value, distribution, version] of each entry point, and the stamps of files that may change
    while the folder's own does not: those that development installs rewrite in place.
    """
    try:
        names = os.listdir(folder) if os.path.isdir(folder) else [".egg-info"]  # a zip file: importlib looks into it
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
            known_as = [str(distribution.metadata["Name"]), str(distribution.version)] if points else []
        except Exception:  # noqa: S112  # a stranger's broken metadata must not take every other package down
            continue
        rows += [[point.group, point.name, point.value, *known_as] for point in points]
    return rows, stamps


def _index_path() -> str | None:
    """Give the index's path, one for each environment; None where no cache folder that is ours alone exists."""
    cache = settings.cache_dir()[0]
    try:
        return f"{cache}/index/{_INDEX}" if _is_ours(os.stat(cache), stat.S_ISDIR) else None
    except OSError:
        return None


def _is_ours(status: os.stat_result, kind: Any) -> bool:
    return bool(kind(status.st_mode)) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _read(name: str | None) -> dict[str, list[Any]]:
    if name is None:
        return {}
    import json

    try:
        if not _is_ours(os.lstat(os.path.dirname(name)), stat.S_ISDIR):
            return {}
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            if not _is_ours(status, stat.S_ISREG) or status.st_size > _LONGEST:
                return {}
            content = json.loads(os.read(handle, status.st_size))
        finally:
            os.close(handle)
        if content["format"] != _FORMAT:
            return {}
        folders: dict[str, list[Any]] = content["folders"]
        return folders if all(_is_sound(known) for known in folders.values()) else {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _is_sound(known: Any) -> bool:
    stamp, rows, stamps = known
    return (
        isinstance(stamp, int)
        and isinstance(stamps, dict)
        and all(len(row) == 5 and all(isinstance(field, str) for field in row) for row in rows)
    )


def _write(name: str, folders: Iterable[Any]) -> None:
    import json
    import tempfile

    text = json.dumps({"format": _FORMAT, "folders": folders})
    folder = os.path.dirname(name)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if not _is_ours(os.lstat(folder), stat.S_ISDIR):
            return
        handle, draft = tempfile.mkstemp(prefix=".entry_points-", dir=folder)
    except OSError:
        return
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(draft, name)
    except OSError:
        try:
            os.unlink(draft)
        except OSError:
            pass
