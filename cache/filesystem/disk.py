"""The operations of a disk and a clock that the cache uses, in one class, so that a test can use a fake disk."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterable
from typing import NamedTuple

from opforge.foundation import remembered_values

MAX_LINKS = 40
"""As many links as Linux follows on the way to a file."""
CHUNK = 64 << 10
"""Bytes that are read and hashed at a time."""


class Stamp(NamedTuple):
    """The `stat` of a file. Equal stamps mean equal content, unless the stamp is racy: see `FlatStamps.is_racy`."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    """In images, whose stamps repeat, a number from the content: see `opforge.foundation.images`."""


class Disk:
    """The real disk and the real clock."""

    def stamp(self, path: str) -> Stamp | None:
        """Returns the stamp of a file or folder, following links; None if there is none."""
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return None
        inode = remembered_values.inode_of(path, status)
        return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns, inode)

    def flat_stamps(self, paths: Iterable[str], links: int = 0) -> list[int]:
        """Returns the stamps of many paths in one flat list: see `remembered_values.stamps_of`."""
        return remembered_values.stamps_of(paths, links)

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
