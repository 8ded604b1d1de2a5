"""Removes from this machine's cache what is over its limits and what nothing needs: `opforge gc`, and each build.

That is: what nothing needs, such as files of dead processes and failed builds; entries over the age limit; and, over
the limit of size, what lies in other areas, then the entries that were not used for longest.

- `unneeded.py` finds what nothing needs any more, and says why.
- `limits.py` starts the automatic gc, after each build and hourly on hits, if a limit or the day's sweep calls for it.
- `cache/areas.py` has the folders of a store: how long their contents are kept, and which count in its size.
- `remote/gc.py` does the same for a remote store.

Nothing here needs a lock. An entry leaves by one rename, so no process ever sees a part of one, and a process that has
loaded it keeps its library. What another process removes first is not counted. Times are compared with the clock of the
store's file system (`files.now_in`).
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import stat
import threading
from collections.abc import Collection, Sequence
from typing import NamedTuple

from opforge.cache import staging
from opforge.cache.areas import AREAS
from opforge.cache.filesystem import lock
from opforge.cache.layout import TAG_NAME, Layout
from opforge.cache.ownership import has_tag, is_own
from opforge.cache.records import pins, size_log
from opforge.errors import CacheDirError
from opforge.foundation import settings
from opforge.foundation.events import emit
from opforge.foundation.files import advice_of

from . import listing, parallel, pointers, unneeded

GRACE_SECONDS = 5.0
"""An entry that was published or used this recently stays: a process may be about to load it."""
UNNAMED_SECONDS = 3600.0
"""How long an entry stays that no pointer names: it is published before it is named."""
OVER_LIMIT = "the least recently used, and the store is larger than the limit"
KINDS = {"": "temporary file", **{name: area.noun for name, area in AREAS.items() if area.noun}}
"""Names of the contents of each area."""
POINTERS = frozenset(KINDS[area] for area in pointers.AREAS)


class Eviction(NamedTuple):
    """A file or folder to remove, and why."""

    kind: str
    """`entry`, or one of KINDS."""
    path: str
    size: int
    """Bytes."""
    reason: str
    op: str = ""


class _Reclaimable(NamedTuple):
    """A folder or a file that the size limit counts besides entries."""

    area: str
    path: str
    size: int
    idle: float
    """Seconds since its last change."""


# -- choosing what is removed ------------------------------------------------------------------------------------------


def over_limit(layout: Layout, now: float, max_size: int | None = None, max_age: float | None = None) -> list[Eviction]:
    """Returns the removals of `gc`: artifacts over the limits, the least recently used first, and what nothing needs.

    Changes nothing.

    Args:
        layout: The store.
        now: Seconds since the epoch.
        max_size: Bytes of entries, objects, quarantine and the like. Entries are evicted last.
        max_age: Seconds since the last use of an entry.
    """
    require_store(layout)
    named = pointers.read(layout)
    uses = named.last_uses()
    stored = sorted(listing.measured(layout, uses), key=lambda entry: entry.used)
    unused = [_eviction(*item) for item in unneeded.find(layout, named, now)]
    reclaimable = _reclaimable(layout, now, {eviction.path for eviction in unused})
    excess = sum(entry.size for entry in stored) + sum(item.size for item in reclaimable)
    excess -= excess if max_size is None else max_size
    for item in reclaimable:
        if excess > 0 and item.idle >= GRACE_SECONDS:
            excess -= item.size
            unused.append(_eviction(item.area, item.path, OVER_LIMIT))
    evicted, kept = [], pins.pinned(layout)
    for entry in stored:
        idle = now - max(entry.built, entry.used)
        if abs(idle) < GRACE_SECONDS or entry.key in kept:  # abs: a use far in the future is a wrong clock's
            continue
        if named.is_complete and entry.key not in uses and idle > UNNAMED_SECONDS:
            reason = "nothing names it: another library took its place"
        elif max_age is not None and idle > max_age:
            reason = "not used for longer than the age limit"
        elif excess > 0:
            reason = OVER_LIMIT
        else:
            continue
        evicted.append((entry.key, Eviction("entry", layout.entry(entry.key), entry.size, reason, entry.op)))
        excess -= entry.size
    gone = {key for key, _eviction in evicted}
    return [eviction for _key, eviction in evicted] + _orphans(layout, named, gone) + unused


def _reclaimable(layout: Layout, now: float, besides: Collection[str]) -> list[_Reclaimable]:
    """Returns the items, except `besides`, that the size limit counts and that are no entries; the oldest first."""
    found = []
    for area in size_log.RECLAIMABLE:
        for child in listing.own_children(layout, area):
            status = listing.stat_of(child.path)
            if status and child.path not in besides and not child.is_symlink():
                found.append(_Reclaimable(area, child.path, _size(child.path), now - status.st_mtime))
    return sorted(found, key=lambda item: -item.idle)


def everything(layout: Layout, keys: Collection[str] | None = None, clear_pinned: bool = False) -> list[Eviction]:
    """Returns the removals of `clear`: the entries with these keys, or all that can be built again. Changes nothing.

    Builds in progress are left alone, and so are pinned entries, unless their keys are given or `clear_pinned` is True.
    """
    require_store(layout)
    pinned = pins.pinned(layout)
    kept = pinned if keys is None and not clear_pinned else ()
    stored = [entry for entry in listing.measured(layout, {}) if keys is None or entry.key in keys]
    stored = [entry for entry in stored if entry.key not in kept]
    evicted = [Eviction("entry", layout.entry(entry.key), entry.size, "cleared", entry.op) for entry in stored]
    evicted += [
        _eviction(pins.AREA, layout.path(pins.AREA, entry.key), "cleared") for entry in stored if entry.key in pinned
    ]
    evicted += _orphans(layout, pointers.read(layout), {entry.key for entry in stored})
    if keys is None:
        for area in (name for name in unneeded.MAX_AGE_SECONDS if name != "locks"):
            evicted += [_eviction(area, child.path, "cleared") for child in listing.own_children(layout, area)]
        evicted += [_eviction("staging", path, "cleared") for path in staging.abandoned(layout)]
    return evicted


def _orphans(layout: Layout, named: pointers.Pointers, evicted: Collection[str]) -> list[Eviction]:
    """Returns the pointers to entries that are gone, or whose keys are in `evicted`.

    None if the folder of the entries is a link: links are not followed, so nothing is known about the entries.
    """
    if os.path.islink(layout.path("entries")):
        return []
    kept = {folder.name for folder in listing.entry_folders(layout)}.difference(evicted)
    gone = (pointer for pointer in named.files if pointer.entry not in kept)
    return [Eviction(KINDS[pointer.area], pointer.path, 0, "its entry was removed") for pointer in gone]


def _eviction(area: str, path: str, reason: str) -> Eviction:
    return Eviction(KINDS[area], path, _size(path), reason)


def _size(path: str) -> int:
    """Returns the bytes of a file, or of all files below a folder."""
    files = [path, *(os.path.join(parent, name) for parent, _folders, names in os.walk(path) for name in names)]
    return sum(status.st_size for file in files if not os.path.isdir(file) and (status := listing.stat_of(file)))


# -- removing ----------------------------------------------------------------------------------------------------------


def remove(layout: Layout, evictions: Sequence[Eviction]) -> list[Eviction]:
    """Removes these; returns those that this call has removed.

    Raises:
        CacheDirError: The folder is no store: nothing was removed. Or the first that could not be removed; all the
            others were tried before.
    """
    if evictions:
        require_store(layout)
    counted, freed = {"entry", *(KINDS[area] for area in size_log.RECLAIMABLE)}, 0
    is_logged = bool(settings.log())
    removed: list[Eviction] = []
    errors: list[CacheDirError] = []
    with _Trash(layout) as trash, size_log.appending(layout) as append:
        outcomes = parallel.call_for_each(functools.partial(_remove, trash), evictions)
        for eviction, outcome in zip(evictions, outcomes, strict=True):
            if isinstance(outcome, CacheDirError):
                errors.append(outcome)
            elif outcome:
                removed.append(eviction)
                freed += eviction.size if eviction.kind in counted else 0
                if is_logged:
                    fields = {"kind": eviction.kind, "op": eviction.op, "path": eviction.path}
                    emit("evict", **fields, reasons=[eviction.reason], bytes=eviction.size)
        append(-freed)
    if errors:
        raise errors[0]
    return removed


class _Trash:
    """A staging folder into which folders are moved before they are removed: other processes never see a part of one.

    If this process is killed, a sweep finds the staging folder, whose name holds its owner.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._folder, self._first = "", threading.Lock()
        self._numbers = itertools.count()

    def __enter__(self) -> _Trash:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def remove(self, path: str) -> None:
        """Removes a folder. Raises OSError if it cannot be moved."""
        with self._first:
            self._folder = self._folder or staging.new_folder(self.layout, "removed")
        target = f"{self._folder}/{next(self._numbers)}"
        staging.move(path, target)
        try:
            for name in os.listdir(target):  # an entry holds three files: shutil.rmtree takes twice as long
                os.unlink(f"{target}/{name}")
            os.rmdir(target)
        except OSError:
            shutil.rmtree(target, ignore_errors=True)


def require_store(layout: Layout) -> None:
    """Raises CacheDirError if a folder is no store of opforge's: what it holds is the user's."""
    if not has_tag(layout.root) and os.path.lexists(layout.path()):
        problem = f"it has a folder {os.path.basename(layout.path())}, but no {TAG_NAME} of opforge's"
        advice = "Nothing was removed. Set OPFORGE_CACHE_DIR to the folder of a store"
        raise CacheDirError(layout.root, problem, advice)


def _remove(trash: _Trash, eviction: Eviction) -> bool | CacheDirError:
    """Performs an eviction. Returns whether this call has removed the artifact, or the error that prevented it."""
    if not is_own(trash.layout, eviction.path):  # no list of what is to be removed has such a path
        problem = f"{eviction.path} is not of opforge's making"
        return CacheDirError(trash.layout.root, problem, "Remove it yourself, if it is not needed")
    try:
        return _unlink(eviction, trash)
    except FileNotFoundError:
        return False  # another process was first
    except OSError as error:
        advice = f"{eviction.path} could not be removed. {advice_of(error) or 'Run this as its owner'}"
        return CacheDirError(trash.layout.root, f"it cannot be changed ({error.strerror})", advice)


def _unlink(eviction: Eviction, trash: _Trash) -> bool:
    if eviction.kind == KINDS["locks"]:
        return lock.remove(eviction.path)
    is_pointer = eviction.kind in POINTERS
    if not is_pointer and stat.S_ISDIR(os.lstat(eviction.path).st_mode):
        if eviction.kind == KINDS["staging"]:
            shutil.rmtree(eviction.path)
        else:
            trash.remove(eviction.path)
        return True
    try:
        os.unlink(eviction.path)
    except IsADirectoryError:
        return _remove_if_empty(eviction.path)  # a folder that should hold pointers
    if is_pointer:
        _remove_if_empty(os.path.dirname(eviction.path))
    return True


def _remove_if_empty(folder: str) -> bool:
    try:
        os.rmdir(folder)
        return True
    except OSError:
        return False  # it holds others
