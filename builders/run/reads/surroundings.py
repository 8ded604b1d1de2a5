"""The files around an op's sources before a run: they, or else the clock, show what changes during the run.

The clock is that of the store's file system. Another one, such as a server's, may be behind it: a file there would seem
to be older than the run. So what lies there is stamped before the run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from opforge.cache.filesystem.disk import Disk, Stamp

MAX_FILES = 2000
"""How many files and folders are looked at before a run, of those on other file systems and of those near sources."""
SUFFIXES = (
    *(".h", ".hh", ".hpp", ".hxx", ".cuh", ".inc", ".inl", ".def", ".ipp", ".tpp", ".tcc", ".icc"),
    *(".c", ".cc", ".cpp", ".cxx", ".cu", ".hip"),
)
"""The names of the files that are stamped. An op that reads another one there is compiled twice, to be sure of it."""


class Surroundings(NamedTuple):
    """The names and files around an op's sources, before a run."""

    disk: Disk
    started: int
    """When the run began, in nanoseconds by the clock of the store's file system."""
    device: int
    """The number of the store's file system."""
    names: Mapping[str, frozenset[str]]
    """Searched folder -> the names in it."""
    stamps: Mapping[str, Stamp]
    """File on another file system -> its stamp."""

    def has_changed(self, path: str, stamp: Stamp | None, previous: Stamp | None, is_own: bool) -> bool:
        """Returns whether a file that was read may have changed since the run began.

        Args:
            path: The file.
            stamp: Its stamp after the run; None if it is gone.
            previous: Its stamp after the run before, if there was one.
            is_own: Whether it is the op's own. Installed packages and the system's files are taken to be on time.
        """
        if stamp is None:
            return True
        if path in self.stamps:
            return stamp != self.stamps[path]
        if stamp == previous:
            return False
        return stamp.ctime_ns >= self.started or (is_own and self.disk.device(path) != self.device)

    def has_come_or_gone(self, path: str) -> bool:
        """Returns whether a path that was looked for may have appeared, or gone, since the run began."""
        child, folder = path, os.path.dirname(path)
        while folder != child:
            if folder in self.names:
                is_there = self.disk.exists(child)
                if (os.path.basename(child) in self.names[folder]) != is_there:
                    return True
                if child == path or not is_there:
                    return False
                break  # a folder that was there, but whose names are not known
            child, folder = folder, os.path.dirname(folder)
        nearest = self.disk.nearest(path)
        parent = os.path.dirname(path) if nearest == path else nearest
        return max(self.disk.changed_at(name) for name in (nearest, parent, f"{parent}/.")) >= self.started


def look_around(disk: Disk, work: str, started: int, own: Iterable[str], others: Iterable[str]) -> Surroundings:
    """Returns the present names and files.

    Args:
        disk: The disk.
        work: A folder on the store's file system.
        started: When the run began.
        own: The folders of the op's own files, which are looked into if they lie on other file systems.
        others: Further folders that are searched.
    """
    device, own = disk.device(work), [*dict.fromkeys(map(os.path.normpath, own))]
    names = {folder: disk.names(folder) for folder in (*own, *map(os.path.normpath, others))}
    stamps: dict[str, Stamp] = {}
    folders = [folder for folder in own if disk.device(folder) != device]
    for folder in folders:  # which grows: those near the sources come first
        for path, is_folder in _children(folder):
            if is_folder and path not in names:
                names[path] = disk.names(path)
                folders.append(path)
            elif path.endswith(SUFFIXES) and (stamp := disk.stamp(path)):
                stamps[path] = stamp
        if len(stamps) + len(folders) > MAX_FILES:
            break
    return Surroundings(disk, started, device, names, stamps)


def files_near(folders: Iterable[str]) -> list[str]:
    """Returns the files in some folders and below them that compilers may read, the nearest first.

    It ends with the folder in which MAX_FILES files and folders have been looked at: the same one for each process.
    """
    queue, files, looked_at = [*dict.fromkeys(map(os.path.normpath, folders))], list[str](), 0
    known = {*queue}
    for folder in queue:  # which grows
        children = _children(folder)
        files += [path for path, is_folder in children if not is_folder and path.endswith(SUFFIXES)]
        below = [path for path, is_folder in children if is_folder and path not in known]
        queue += below
        known.update(below)
        looked_at += len(children)
        if looked_at >= MAX_FILES:
            break
    return files


def _children(folder: str) -> list[tuple[str, bool]]:
    """Returns the path of each file and folder in a folder, with whether it is a folder. No hidden folders."""
    try:
        with os.scandir(folder) as children:
            entries = [(child.path, child.is_dir(follow_symlinks=False), child.name[0] == ".") for child in children]
    except OSError:
        return []
    return sorted((path, is_folder) for path, is_folder, is_hidden in entries if not (is_folder and is_hidden))
