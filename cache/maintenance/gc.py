"""Keeps a store bounded: evicts what is used least, sweeps what dead processes and failed builds left.

Nothing here needs a lock. An entry leaves by one rename, so nobody ever sees half of one, and a process that has
loaded it keeps its library. Whatever another process removes first counts as removed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable
from typing import NamedTuple

from opforge.cache import staging
from opforge.cache.layout import Layout
from opforge.cache.records import size_log
from opforge.errors import CacheDirError
from opforge.events import emit

from . import listing
from .pins import pinned

GRACE_SECONDS = 5.0
"""An entry that was published or used this recently stays: someone may be about to load it."""
OVER_LIMIT = "the least recently used, and the store is larger than the limit"
DAY = 24 * 3600.0
MAX_AGE_SECONDS = {
    "answers": 30 * DAY,
    "failures": DAY,
    "locks": 7 * DAY,
    "logs": 7 * DAY,
    "objects": 30 * DAY,
    "peaks": 180 * DAY,
    "quarantine": 7 * DAY,
    "sources": 30 * DAY,
    "triton": 30 * DAY,
}
"""How long what is no entry is kept. `sources` are those of load_inline, which writes them again when it needs them;
`triton` are the kernels of Triton's own cache, from their last use."""
TEMP_FILE_SECONDS = 3600.0
"""A file that is being written has its own name by then: one that has not was left by a process that was killed."""
KINDS = {
    "": "unfinished file",
    "answers": "answer",
    "descriptions": "description",
    "failures": "failure",
    "locks": "lock",
    "logs": "log",
    "objects": "object",
    "peaks": "memory record",
    "plans": "ticket",
    "quarantine": "quarantined folder",
    "sources": "source",
    "staging": "abandoned build",
    "toolchains": "compiler record",
    "triton": "Triton kernel",
}


class Eviction(NamedTuple):
    """Something that is to be removed, and why."""

    kind: str
    """entry, or one of KINDS."""
    path: str
    size: int
    reason: str
    op: str = ""


# -- choosing what goes ------------------------------------------------------------------------------------------------


def over_limit(layout: Layout, now: float, max_size: int | None = None, max_age: float | None = None) -> list[Eviction]:
    """What `gc` removes: what is beyond the limits, the least recently used first, and what nobody needs any more.

    `max_size` is in bytes and counts entries, the objects kept for their next build, and Triton's kernels; entries go
    last. `max_age` is in seconds since the last use. Changes nothing.
    """
    stored = sorted(listing.entries(layout), key=lambda one: one.used)
    garbage = _garbage(layout, now)
    reclaimable = _reclaimable(layout, now, {one.path for one in garbage})
    excess = sum(one.size for one in stored) + sum(size for _area, _path, size, _idle in reclaimable)
    excess -= excess if max_size is None else max_size
    for area, path, size, idle in reclaimable:
        if excess > 0 and idle >= GRACE_SECONDS:
            excess -= size
            garbage.append(_eviction(area, path, OVER_LIMIT))
    gone, stays = [], pinned(layout)
    for one in stored:
        idle = now - max(one.built, one.used)
        if abs(idle) < GRACE_SECONDS or one.key in stays:  # a use in the future was told by a wrong clock
            continue
        if (max_age is not None and idle > max_age) or excess > 0:
            reason = OVER_LIMIT if max_age is None or idle <= max_age else "not used for longer than the age limit"
            gone.append((one.key, Eviction("entry", layout.entry(one.key), one.size, reason, one.op)))
            excess -= one.size
    dead = {result for result, _condemned in gone}
    kept = {one.name for one in listing.subfolders(layout.path("entries"))} - dead
    return [condemned for _result, condemned in gone] + _orphans(layout, kept) + garbage


def _reclaimable(layout: Layout, now: float, besides: Collection[str]) -> list[tuple[str, str, int, float]]:
    """(area, folder, bytes, seconds since its last change) of what is no entry and counts, the oldest first."""
    found = []
    for area in size_log.RECLAIMABLE:
        for folder in listing.subfolders(layout.path(area)):
            stat = listing.stat_of(folder.path)
            if stat and folder.path not in besides:
                found.append((area, folder.path, _size(folder.path), now - stat.st_mtime))
    return sorted(found, key=lambda one: -one[3])


def everything(layout: Layout, results: Collection[str] | None = None) -> list[Eviction]:
    """What `clear` removes: all that can be built again, or these entries alone. Live builds are left alone."""
    stored = [one for one in listing.entries(layout) if results is None or one.key in results]
    gone = [Eviction("entry", layout.entry(one.key), one.size, "cleared", one.op) for one in stored]
    dead = {one.key for one in stored}
    kept = {one.name for one in listing.subfolders(layout.path("entries"))} - dead
    found = gone + _orphans(layout, kept)
    if results is None:
        for area in ("toolchains", *(name for name in MAX_AGE_SECONDS if name != "locks")):
            found += [_eviction(area, one.path, "cleared") for one in listing.listed(layout.path(area))]
        found += [_eviction("staging", path, "cleared") for path in staging.abandoned(layout)]
    return found


def _orphans(layout: Layout, kept: Collection[str]) -> list[Eviction]:
    """Tickets and descriptions of entries that are gone, or that are about to go."""
    found = []
    for area, result_of in (("plans", listing.entry_key_of), ("descriptions", str)):
        for folder in listing.subfolders(layout.path(area)):
            for file in listing.listed(folder.path):
                result = result_of(file.name)
                if result and not result.endswith(".tmp") and result not in kept:
                    found.append(_eviction(area, file.path, "its entry is gone"))
    return found


def _garbage(layout: Layout, now: float) -> list[Eviction]:
    found = [_eviction("staging", path, "its builder is gone") for path in staging.abandoned(layout)]
    for area, seconds in MAX_AGE_SECONDS.items():
        for one in listing.listed(layout.path(area)):
            stat = listing.stat_of(one.path)
            if stat and now - max(stat.st_mtime, stat.st_ctime) > seconds:
                found.append(_eviction(area, one.path, f"older than {seconds / DAY:g} d"))
    return found + _temp_files(layout, now)


def _temp_files(layout: Layout, now: float) -> list[Eviction]:
    """The files that `write_file` had begun when its process was killed."""
    found = []
    for at, folders, names in os.walk(layout.root):
        if at == layout.path():
            folders[:] = [name for name in folders if name not in ("entries", "quarantine", "staging")]
        for path in (os.path.join(at, name) for name in names if name.endswith(".tmp")):
            stat = listing.stat_of(path)
            if stat and now - stat.st_mtime > TEMP_FILE_SECONDS:
                found.append(_eviction("", path, "its writer is gone"))
    return found


def _eviction(area: str, path: str, reason: str) -> Eviction:
    return Eviction(KINDS[area], path, _size(path), reason)


def _size(path: str) -> int:
    """The bytes of a file, or of all files below a folder."""
    files = [path, *(os.path.join(top, name) for top, _folders, names in os.walk(path) for name in names)]
    return sum(stat.st_size for file in files if not os.path.isdir(file) and (stat := listing.stat_of(file)))


# -- removing ----------------------------------------------------------------------------------------------------------


def remove(layout: Layout, condemned: Iterable[Eviction]) -> list[Eviction]:
    """Remove these, and return those that this call has removed.

    Raises CacheDirError, for the first, where any could not be; the others are gone then.
    """
    gone: list[Eviction] = []
    refused: list[CacheDirError] = []
    for one in condemned:
        if _remove(layout, one, refused):
            gone.append(one)
            if one.kind in ("entry", *(KINDS[area] for area in size_log.RECLAIMABLE)):
                size_log.append(layout, -one.size)
            emit("evict", kind=one.kind, op=one.op, path=one.path, reasons=[one.reason], bytes=one.size)
    if refused:
        raise refused[0]
    return gone


def _remove(layout: Layout, one: Eviction, refused: list[CacheDirError]) -> bool:
    try:
        return _take(layout, one)
    except FileNotFoundError:
        return False  # another process was first
    except OSError as error:
        advice = f"{one.path} could not be removed. Run this as its owner"
        refused.append(CacheDirError(layout.root, f"it cannot be changed ({error.strerror})", advice))
        return False


def _take(layout: Layout, one: Eviction) -> bool:
    if one.kind == "lock":
        return _remove_lock(one.path)
    if os.path.isdir(one.path) and not os.path.islink(one.path):
        if one.kind == KINDS["staging"]:
            shutil.rmtree(one.path)
            return True
        # Out of sight by one rename first. Its new name says whose it is, so that a sweep finds it if this dies here.
        grave = staging.new_folder(layout, os.path.basename(one.path))
        try:
            staging.move(one.path, os.path.join(grave, "removed"))
        finally:
            shutil.rmtree(grave, ignore_errors=True)
        return True
    os.unlink(one.path)
    if one.kind in (KINDS["plans"], KINDS["descriptions"]):
        try:
            os.rmdir(os.path.dirname(one.path))
        except OSError:
            return True  # it holds others
    return True


def _remove_lock(path: str) -> bool:
    """Remove a lock's file while holding it, so that nobody is inside; its next user sees that and makes another."""
    if path.endswith(".owner"):
        os.unlink(path)
        return True
    import fcntl

    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
        return True
    except FileNotFoundError:
        raise
    except OSError:
        return False  # somebody holds it, or this file system has no such locks
    finally:
        os.close(handle)
