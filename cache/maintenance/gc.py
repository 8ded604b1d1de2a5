"""Keeps a store bounded: evicts the least recently used entries, removes what dead processes and failed builds left.

Nothing here needs a lock. An entry leaves by one rename, so no process ever sees a part of one, and a process that has
loaded it keeps its library. What another process removes first is not counted.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection, Iterable
from typing import NamedTuple

from opforge.cache import staging
from opforge.cache.filesystem.files import is_temp_name
from opforge.cache.layout import INDEX, TAG_NAME, Layout
from opforge.cache.records import size_log
from opforge.errors import CacheDirError
from opforge.events import emit

from . import listing
from .pins import pinned

GRACE_SECONDS = 5.0
"""An entry that was published or used this recently stays: a process may be about to load it."""
OVER_LIMIT = "the least recently used, and the store is larger than the limit"
DAY = 24 * 3600.0
MAX_AGE_SECONDS = {
    "failures": DAY,
    "locks": 7 * DAY,
    "logs": 7 * DAY,
    "objects": 30 * DAY,
    "peaks": 180 * DAY,
    "quarantine": 7 * DAY,
    "sources": 30 * DAY,
    "triton": 30 * DAY,
}
"""How long the contents of each area are kept. load_inline writes its `sources` again when it needs them. The age of
`triton`, the kernels of Triton's own cache, counts from their last use."""
TEMP_FILE_SECONDS = 3600.0
"""A temporary file that is older was left by a process that was killed."""
KINDS = {
    "": "temporary file",
    "descriptions": "description",
    "failures": "failure",
    "locks": "lock",
    "logs": "log",
    "objects": "object",
    "peaks": "memory record",
    "pins": "pin",
    "plans": "pointer",
    "quarantine": "quarantined folder",
    "sources": "source",
    "staging": "abandoned build",
    "toolchains": "compiler record",
    "triton": "Triton kernel",
}
"""What the contents of each area are called."""
OLD_STORE = "old store"


class Eviction(NamedTuple):
    """A file or folder to remove, and why."""

    kind: str
    """`entry`, OLD_STORE, or one of KINDS."""
    path: str
    size: int
    """Bytes."""
    reason: str
    op: str = ""


class _Reclaimable(NamedTuple):
    """A folder that the size limit counts besides entries."""

    area: str
    path: str
    size: int
    idle: float
    """Seconds since its last change."""


# -- choosing what is removed ------------------------------------------------------------------------------------------


def over_limit(layout: Layout, now: float, max_size: int | None = None, max_age: float | None = None) -> list[Eviction]:
    """Returns what `gc` removes: what is over the limits, the least recently used first, and all garbage.

    Changes nothing.

    Args:
        layout: The store.
        now: Seconds since the epoch.
        max_size: Bytes of entries, objects and Triton kernels. Entries are evicted last.
        max_age: Seconds since the last use of an entry.
    """
    stored = sorted(listing.entries(layout), key=lambda entry: entry.used)
    garbage = _garbage(layout, now)
    reclaimable = _reclaimable(layout, now, {eviction.path for eviction in garbage})
    excess = sum(entry.size for entry in stored) + sum(folder.size for folder in reclaimable)
    excess -= excess if max_size is None else max_size
    for folder in reclaimable:
        if excess > 0 and folder.idle >= GRACE_SECONDS:
            excess -= folder.size
            garbage.append(_eviction(folder.area, folder.path, OVER_LIMIT))
    evicted, kept = [], pinned(layout)
    for entry in stored:
        idle = now - max(entry.built, entry.used)
        if abs(idle) < GRACE_SECONDS or entry.key in kept:  # abs: a use far in the future is a wrong clock's
            continue
        if (max_age is not None and idle > max_age) or excess > 0:
            reason = OVER_LIMIT if max_age is None or idle <= max_age else "not used for longer than the age limit"
            evicted.append((entry.key, Eviction("entry", layout.entry(entry.key), entry.size, reason, entry.op)))
            excess -= entry.size
    return [eviction for _key, eviction in evicted] + _orphans(layout, {key for key, _eviction in evicted}) + garbage


def _reclaimable(layout: Layout, now: float, besides: Collection[str]) -> list[_Reclaimable]:
    """Returns the folders, except `besides`, that the size limit counts and that are no entries; the oldest first."""
    folders = []
    for area in size_log.RECLAIMABLE:
        for folder in listing.subfolders(layout.path(area)):
            status = listing.stat_of(folder.path)
            if status and folder.path not in besides:
                folders.append(_Reclaimable(area, folder.path, _size(folder.path), now - status.st_mtime))
    return sorted(folders, key=lambda folder: -folder.idle)


def everything(layout: Layout, keys: Collection[str] | None = None, clear_pinned: bool = False) -> list[Eviction]:
    """Returns what `clear` removes: the entries with these keys, or all that can be built again. Changes nothing.

    Builds in progress are left alone, and so are pinned entries, unless their keys are given or `clear_pinned` is True.
    """
    pins = pinned(layout)
    kept = pins if keys is None and not clear_pinned else ()
    stored = [entry for entry in listing.entries(layout) if keys is None or entry.key in keys]
    stored = [entry for entry in stored if entry.key not in kept]
    evicted = [Eviction("entry", layout.entry(entry.key), entry.size, "cleared", entry.op) for entry in stored]
    evicted += [_eviction("pins", layout.path("pins", entry.key), "cleared") for entry in stored if entry.key in pins]
    evicted += _orphans(layout, {entry.key for entry in stored})
    if keys is None:
        for area in ("toolchains", *(name for name in MAX_AGE_SECONDS if name != "locks")):
            evicted += [_eviction(area, child.path, "cleared") for child in listing.children(layout.path(area))]
        evicted += [_eviction("staging", path, "cleared") for path in staging.abandoned(layout)]
    return evicted


def old_stores(layout: Layout) -> list[Eviction]:
    """Returns what `clear --old` removes: the stores of earlier formats in the same folder, with their pins."""
    reason = "an older opforge made it"
    return [
        Eviction(OLD_STORE, os.path.join(layout.root, area.name), area.size, reason)
        for area in listing.old_stores(layout)
    ]


def _orphans(layout: Layout, evicted: Collection[str]) -> list[Eviction]:
    """Returns the plans' and descriptions' pointers to entries that are gone, or whose keys are in `evicted`.

    None if the folder of the entries is a link: links are not followed, so nothing is known about the entries.
    """
    if os.path.islink(layout.path("entries")):
        return []
    kept = {folder.name for folder in listing.subfolders(layout.path("entries"))}.difference(evicted)
    orphans = []
    for area in ("plans", "descriptions"):
        for folder in listing.subfolders(layout.path(area)):
            pointers = [file for file in listing.children(folder.path) if not file.name.endswith(".tmp")]
            gone = (file.path for file in pointers if file.name not in kept)
            orphans += [_eviction(area, path, "its entry was removed") for path in gone]
    return orphans


def _garbage(layout: Layout, now: float) -> list[Eviction]:
    """Returns what nothing needs any more: of dead builders, too old, or never finished."""
    garbage = [_eviction("staging", path, "its builder is gone") for path in staging.abandoned(layout)]
    for area, seconds in MAX_AGE_SECONDS.items():
        for child in listing.children(layout.path(area)):
            status = listing.stat_of(child.path)
            if status and now - max(status.st_mtime, status.st_ctime) > seconds:
                garbage.append(_eviction(area, child.path, f"older than {seconds / DAY:g} d"))
    return garbage + _temp_files(layout, now)


def _temp_files(layout: Layout, now: float) -> list[Eviction]:
    """Returns the files that `write_file` had begun when its process was killed.

    Only the folders that opforge makes are searched. The root may be a folder that the user named, and holds other
    files: of these only what has the tag's own temporary name is opforge's.
    """
    files = [child.path for child in listing.children(layout.root) if child.name.startswith(f"{TAG_NAME}.")]
    for top in (layout.path(), os.path.join(layout.root, INDEX)):
        for parent, folders, names in os.walk(top) if not os.path.islink(top) else ():
            if parent == layout.path():
                folders[:] = [name for name in folders if name not in ("entries", "quarantine", "staging")]
            files += [os.path.join(parent, name) for name in names]
    old = []
    for path in filter(lambda path: is_temp_name(os.path.basename(path)), files):
        status = listing.stat_of(path)
        if status and stat.S_ISREG(status.st_mode) and now - status.st_mtime > TEMP_FILE_SECONDS:
            old.append(_eviction("", path, "its writer is gone"))
    return old


def _eviction(area: str, path: str, reason: str) -> Eviction:
    return Eviction(KINDS[area], path, _size(path), reason)


def _size(path: str) -> int:
    """Returns the bytes of a file, or of all files below a folder."""
    files = [path, *(os.path.join(parent, name) for parent, _folders, names in os.walk(path) for name in names)]
    return sum(status.st_size for file in files if not os.path.isdir(file) and (status := listing.stat_of(file)))


# -- removing ----------------------------------------------------------------------------------------------------------


def remove(layout: Layout, evictions: Iterable[Eviction]) -> list[Eviction]:
    """Removes these; returns those that this call has removed.

    Raises:
        CacheDirError: The first that could not be removed. All the others were tried before.
    """
    removed: list[Eviction] = []
    errors: list[CacheDirError] = []
    for eviction in evictions:
        if _remove(layout, eviction, errors):
            removed.append(eviction)
            if eviction.kind in ("entry", *(KINDS[area] for area in size_log.RECLAIMABLE)):
                size_log.append(layout, -eviction.size)
            fields = {"kind": eviction.kind, "op": eviction.op, "path": eviction.path}
            emit("evict", **fields, reasons=[eviction.reason], bytes=eviction.size)
    if errors:
        raise errors[0]
    return removed


def _remove(layout: Layout, eviction: Eviction, errors: list[CacheDirError]) -> bool:
    """Removes one; returns whether this call did. Appends an error to `errors`."""
    try:
        return _unlink(layout, eviction)
    except FileNotFoundError:
        return False  # another process was first
    except OSError as error:
        advice = f"{eviction.path} could not be removed. Run this as its owner"
        errors.append(CacheDirError(layout.root, f"it cannot be changed ({error.strerror})", advice))
        return False


def _unlink(layout: Layout, eviction: Eviction) -> bool:
    if eviction.kind == KINDS["locks"]:
        return _unlink_lock(eviction.path)
    if os.path.isdir(eviction.path) and not os.path.islink(eviction.path):
        if eviction.kind == KINDS["staging"]:
            shutil.rmtree(eviction.path)
            return True
        # Rename before removing: otherwise other processes would see a part of it. If this process is killed in
        # between, a sweep finds the new folder, whose name holds its owner.
        folder = staging.new_folder(layout, os.path.basename(eviction.path))
        try:
            staging.move(eviction.path, os.path.join(folder, "removed"))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return True
    os.unlink(eviction.path)
    if eviction.kind in (KINDS["plans"], KINDS["descriptions"]):
        try:
            os.rmdir(os.path.dirname(eviction.path))
        except OSError:
            return True  # the folder holds others
    return True


def _unlink_lock(path: str) -> bool:
    """Removes a lock's file while holding the lock, so that no process is using it. The next user makes a new file."""
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
        return False  # another process holds it, or this file system has no such locks
    finally:
        os.close(handle)
