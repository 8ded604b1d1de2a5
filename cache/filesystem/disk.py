"""The few questions that the cache asks of a disk and a clock, in one place so that a test can answer them."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from typing import NamedTuple

ABSENT = (-1, -1, -1, -1)


class Stamp(NamedTuple):
    """What `stat` says of a file. Equal stamps mean the same content, unless the file was young (see tickets.py)."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class Disk:
    """The real disk and the real clock."""

    def stamp(self, path: str) -> Stamp | None:
        """The stamp of a file or folder, following links; None where there is none."""
        try:
            found = os.stat(path)
        except (OSError, ValueError):
            return None
        # As Stamp(...) would, in half the time: a hit takes some forty of these.
        return tuple.__new__(Stamp, (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino))

    def flat_stamps(self, paths: Iterable[str]) -> list[int]:
        """The stamps of many, one after the other in one flat list, -1 four times for what is not there.

        A hit looks at some fifty files: asked for one by one, the calls would cost it as much as the kernel does.
        """
        found: list[int] = []
        stat = os.stat
        for path in paths:
            try:
                one = stat(path)
            except (OSError, ValueError):
                found += ABSENT
            else:
                found += (one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_ino)
        return found

    def digest(self, path: str) -> str | None:
        """The SHA-256 of a file's bytes in hex; None where it cannot be read."""
        try:
            with open(path, "rb") as file:
                return hashlib.sha256(file.read()).hexdigest()
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        """Whether anything, a dangling link included, has this name."""
        return os.path.lexists(path)

    def names(self, folder: str) -> frozenset[str]:
        """The names in a folder; none where it cannot be listed."""
        try:
            return frozenset(os.listdir(folder))
        except OSError:
            return frozenset()

    def now_ns(self) -> int:
        """Nanoseconds since the epoch, by this machine's clock."""
        return time.time_ns()
