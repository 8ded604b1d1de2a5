"""The pointers of a store: files by which plans and descriptions name entries. Their times are the last uses."""

from __future__ import annotations

import os
from typing import NamedTuple

from opforge.cache.layout import FETCHED, Layout
from opforge.cache.ownership import is_own, is_own_name
from opforge.foundation.files import is_temp_name

AREAS = ("plans", "descriptions", FETCHED)


class Pointer(NamedTuple):
    """One file by which an entry is found."""

    area: str
    path: str
    entry: str
    """The name of the entry's folder."""
    used: float
    """When the entry was last found by it, or when it was written; seconds since the epoch."""


class Pointers(NamedTuple):
    """All pointers of a store, and the folders that hold none."""

    files: list[Pointer]
    empty: list[tuple[str, str, float]]
    """(area, path, time of the last change) of each folder without a file."""
    temp_files: list[str]
    """The paths of pointers that are being written, or were when their process was killed."""
    is_complete: bool
    """Whether every folder could be read. If not, an entry may be named by a pointer that is not in `files`."""

    def last_uses(self) -> dict[str, float]:
        """Returns when each entry was last used: the newest time of a pointer to it."""
        newest: dict[str, float] = {}
        for pointer in self.files:
            if pointer.used > newest.get(pointer.entry, 0.0):
                newest[pointer.entry] = pointer.used
        return newest


def read(layout: Layout) -> Pointers:
    """Returns the pointers of a store. Links are not followed: they could lead out of the store."""
    files: list[Pointer] = []
    empty: list[tuple[str, str, float]] = []
    temp_files: list[str] = []
    is_complete = True
    for area in AREAS:
        try:
            for folder in _folders(layout.path(area)):
                if not is_own_name(area, folder.name):
                    continue
                try:
                    if not _read_folder(layout, area, folder.path, files, temp_files):
                        empty.append((area, folder.path, folder.stat(follow_symlinks=False).st_mtime))
                except FileNotFoundError:
                    continue  # another process has just removed it
        except FileNotFoundError:
            is_complete = is_complete and area == FETCHED  # it is made when something is fetched
        except OSError:
            is_complete = False
    return Pointers(files, empty, temp_files, is_complete)


def _folders(path: str) -> list[os.DirEntry[str]]:
    """Returns the folders in an area. Raises OSError if it is a link or cannot be read."""
    if os.path.islink(path):
        raise NotADirectoryError(path)
    with os.scandir(path) as children:
        return [child for child in children if child.is_dir(follow_symlinks=False)]


def _read_folder(layout: Layout, area: str, path: str, files: list[Pointer], temp_files: list[str]) -> bool:
    """Appends the files in a folder of pointers to the lists. Returns whether the folder holds anything."""
    names = os.listdir(path)
    for name in names:
        file = f"{path}/{name}"
        if is_temp_name(name):
            temp_files.append(file)
            continue
        if not is_own(layout, file):
            continue
        try:
            files.append(Pointer(area, file, name, os.lstat(file).st_mtime))
        except FileNotFoundError:
            continue
    return bool(names)
