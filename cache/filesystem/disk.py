"""The operations of a disk and a clock that the cache uses, in one class, so that a test can use a fake disk."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

ABSENT = (-1, -1, -1, -1)
"""The stamp of a path at which there is nothing, in `Disk.flat_stamps`."""
PathStamp = tuple[str, tuple[int, ...]]
"""A path with its stamp; the stamp is ABSENT if there is nothing."""
RACY_NS = 2_000_000_000
"""How long before its stamp was taken a file must have been modified for the stamp to be trusted."""
SECOND_NS = 1_000_000_000
"""Only an image's files, and those of file systems with coarse times, are changed at whole seconds."""
MAX_LINKS = 40
"""As many links as Linux follows on the way to a file."""
CHUNK = 64 << 10
"""Bytes that are read and hashed at a time."""


class Stamp(NamedTuple):
    """What `stat` reports of a file. Equal stamps mean equal content, unless it is racy: see `FlatStamps.is_racy`."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    """In images, whose stamps repeat, a number from the content: see `opforge.file_systems.images`."""


class FlatStamps:
    """Paths and their stamps, four numbers a path: as `Disk.flat_stamps` returns them, and JSON holds them.

    Not a NamedTuple: making the class would take a tenth of a hit's time.
    """

    __slots__ = ("numbers", "paths")

    def __init__(self, paths: Sequence[str] = (), numbers: Sequence[int] = ()) -> None:
        self.paths, self.numbers = paths, numbers

    @classmethod
    def of(cls, stamps: Iterable[PathStamp]) -> FlatStamps:
        """Returns the same stamps from pairs."""
        pairs = list(stamps)
        return cls([path for path, _stamp in pairs], [number for _path, stamp in pairs for number in stamp])

    def pairs(self) -> list[PathStamp]:
        """Returns each path with its stamp."""
        return [(path, tuple(self.numbers[4 * at : 4 * at + 4])) for at, path in enumerate(self.paths)]

    def is_racy(self, at_ns: int) -> bool:
        """Returns whether a file was modified later than two seconds before `at_ns`, when the stamps were taken.

        A second change within one tick of a coarse clock would not change such a stamp. (git's index has the same rule,
        and calls such a file racily clean.)
        """
        return max((*self.numbers[1::4], *self.numbers[2::4]), default=0) > at_ns - RACY_NS


class Disk:
    """The real disk and the real clock."""

    def stamp(self, path: str) -> Stamp | None:
        """Returns the stamp of a file or folder, following links; None if there is none."""
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return None
        changed = status.st_ctime_ns
        inode = status.st_ino if changed % SECOND_NS else image_inode(path, status)
        # Half the time that Stamp(...) takes: a hit takes about forty stamps.
        return tuple.__new__(Stamp, (status.st_size, status.st_mtime_ns, changed, inode))

    def flat_stamps(self, paths: Iterable[str]) -> list[int]:
        """Returns the stamps of many paths in one flat list, four numbers a path: ABSENT if there is nothing.

        A hit looks at about fifty files: fifty calls of `stamp` would cost as much as the system calls themselves.
        """
        stamps: list[int] = []
        stat = os.stat
        for path in paths:
            try:
                status = stat(path)
            except (OSError, ValueError):
                stamps += ABSENT
            else:
                changed = status.st_ctime_ns
                inode = status.st_ino if changed % SECOND_NS else image_inode(path, status)
                stamps += (status.st_size, status.st_mtime_ns, changed, inode)
        return stamps

    def digest(self, path: str) -> str | None:
        """Returns the SHA-256 of a file's bytes in hex; None if it cannot be read."""
        try:
            # Without O_NONBLOCK a pipe in a file's place would block for ever.
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            status = os.fstat(handle)
            return digest_of(handle, status.st_size) if stat.S_ISREG(status.st_mode) else None
        except OSError:
            return None
        finally:
            os.close(handle)

    def exists(self, path: str) -> bool:
        """Returns whether anything has this name; a dangling link counts."""
        return os.path.lexists(path)

    def nearest(self, path: str, top: str = "/") -> str:
        """Returns the path, or the nearest folder above it that exists; `top`, which it lies below, if none does.

        The stamp of that folder changes if the next name on the way to the path appears.
        """
        while len(path) > len(top) and not self.exists(path):
            path = os.path.dirname(path)
        return path

    def is_file(self, path: str) -> bool:
        """Returns whether a compiler can open this: not a folder, and no dangling link."""
        try:
            return not stat.S_ISDIR(os.stat(path).st_mode)
        except (OSError, ValueError):
            return False

    def links_from(self, path: str) -> list[str]:
        """Returns the links from this path on to what it leads to, and at last the path of that, which need not exist.

        Only the last part of a path is followed.
        """
        paths = [path]
        while len(paths) <= MAX_LINKS and os.path.islink(paths[-1]):
            paths.append(os.path.join(os.path.dirname(paths[-1]), os.readlink(paths[-1])))
        return paths

    def changed_at(self, path: str) -> int:
        """Returns when a file, folder or link was last changed or renamed, in nanoseconds; 0 if there is none."""
        try:
            return os.lstat(path).st_ctime_ns
        except (OSError, ValueError):
            return 0

    def device(self, path: str) -> int:
        """Returns the number of the file system that holds a file or folder; -1 if there is none."""
        try:
            return os.stat(path).st_dev
        except (OSError, ValueError):
            return -1

    def names(self, folder: str) -> frozenset[str]:
        """Returns the names in a folder; none if it cannot be listed."""
        try:
            return frozenset(os.listdir(folder))
        except OSError:
            return frozenset()

    def now_ns(self) -> int:
        """Returns the nanoseconds since the epoch, by this machine's clock."""
        return time.time_ns()


def image_inode(path: str, status: os.stat_result) -> int:
    """Returns the last number of the stamp of a file that was changed at a whole second."""
    from opforge.file_systems.images import inode  # not on the path of a hit, unless files may be an image's

    return inode(path, status)


def digest_of(handle: int, size: int = -1) -> str:
    """Returns the SHA-256, in hex, of what is left to read from a descriptor.

    With the file's `size` in bytes the end is not looked for where a short read has reached it: most files of an op fit
    into one read, whose memory need not be larger than they are.
    """
    digest, count = hashlib.sha256(), 0
    while chunk := os.read(handle, min(CHUNK, size + 1) if size > 0 else CHUNK):
        digest.update(chunk)
        count += len(chunk)
        if count == size and len(chunk) < CHUNK:
            break
    return digest.hexdigest()
