"""Finds files in a store that nothing needs any more: of dead builders, too old, unused, or never finished."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from opforge.cache import staging
from opforge.cache.areas import AREAS, DAY
from opforge.cache.layout import TAG_NAME, Layout
from opforge.cache.ownership import is_own
from opforge.foundation.files import is_temp_name

from . import listing, pointers

MAX_AGE_SECONDS = {name: area.seconds for name, area in AREAS.items() if area.seconds}
"""How long the contents of each area are kept."""
KEPT_DESCRIPTIONS = 16
"""How many descriptions find an entry without a compiler. Each name of an op's folder may give it another one."""
TEMP_FILE_SECONDS = 3600.0
"""A temporary file that is older was left by a process that was killed."""


class Unneeded(NamedTuple):
    """A file or folder that is not needed, and why."""

    area: str
    """The folder of the store that it is in; empty for a temporary file."""
    path: str
    reason: str


def find(layout: Layout, named: pointers.Pointers, now: float) -> Iterator[Unneeded]:
    """Yields the files and folders of a store that nothing needs any more. Changes nothing.

    Args:
        layout: The store.
        named: Its pointers.
        now: Seconds since the epoch, by the clock of the store's file system.
    """
    for path in staging.abandoned(layout):
        yield Unneeded("staging", path, "its builder is gone")
    for area, seconds in MAX_AGE_SECONDS.items():
        yield from _old(area, listing.own_children(layout, area), seconds, now)
    yield from _surplus(named, now)
    for path in _temp_files(layout):
        if _age(path, now) > TEMP_FILE_SECONDS:
            yield Unneeded("", path, "its writer is gone")


def _old(area: str, children: Iterable[os.DirEntry[str]], seconds: float, now: float) -> Iterator[Unneeded]:
    for child in children:
        status = listing.stat_of(child.path)
        if status and now - max(status.st_mtime, status.st_ctime) > seconds:
            yield Unneeded(area, child.path, f"older than {seconds / DAY:g} d")


def _age(path: str, now: float) -> float:
    """Returns how many seconds ago a file was written; less than 0 if it is gone or is no file."""
    status = listing.stat_of(path)
    return now - status.st_mtime if status and stat.S_ISREG(status.st_mode) else -1.0


def _surplus(named: pointers.Pointers, now: float) -> Iterator[Unneeded]:
    """Yields the folders of pointers that are empty, what is half written there, and descriptions beyond the newest."""
    for area, path, modified in named.empty:
        if now - modified > TEMP_FILE_SECONDS:
            yield Unneeded(area, path, "it is empty")
    for path in named.temp_files:
        if _age(path, now) > TEMP_FILE_SECONDS:
            yield Unneeded("", path, "its writer is gone")
    descriptions: dict[str, list[pointers.Pointer]] = {}
    for pointer in named.files:
        if pointer.area == "descriptions":
            descriptions.setdefault(pointer.entry, []).append(pointer)
    for of_entry in descriptions.values():
        if len(of_entry) > KEPT_DESCRIPTIONS:
            of_entry.sort(key=lambda pointer: -pointer.used)
            for pointer in of_entry[KEPT_DESCRIPTIONS:]:
                yield Unneeded(pointer.area, pointer.path, "its entry has newer ones")


def _temp_files(layout: Layout) -> Iterator[str]:
    """Yields the files that `write_file` had begun when its process was killed, except those among the pointers.

    Only the folders that opforge makes are searched. The root may be a folder that the user named, and holds other
    files: of these only what has the tag's own temporary name is opforge's.
    """
    files = [child.path for child in listing.children(layout.root) if child.name.startswith(f"{TAG_NAME}.")]
    skipped = ("entries", "quarantine", "staging", *pointers.AREAS)
    top = layout.path()
    for parent, folders, names in os.walk(top) if not os.path.islink(top) else ():
        if parent == top:
            folders[:] = [name for name in folders if name not in skipped]
        files += [os.path.join(parent, name) for name in names if is_temp_name(name)]
    yield from (path for path in files if is_own(layout, path))
