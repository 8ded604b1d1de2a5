"""Stand-ins for the disk and its clock."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable

from opforge.cache.filesystem.disk import Disk, Stamp
from opforge.foundation.remembered_values import ABSENT

SECOND = 1_000_000_000
"""In nanoseconds."""


class FakeDisk(Disk):
    """Files with stamps that the test chooses, and a clock that only the test moves. Records what was hashed."""

    def __init__(self, now: int = 1_000 * SECOND) -> None:
        self.now = now
        self.files: dict[str, bytes | None] = {}
        self.stamps: dict[str, Stamp] = {}
        self.hashed: list[str] = []
        self._inodes = itertools.count(10)

    def write(self, path: str, content: str, at: int | None = None, **stamp: int) -> None:
        """Writes a file, modified at `at`; `stamp` sets any part of its stamp. A new name touches its folder."""
        moment = self.now if at is None else at
        old = self.stamps.get(path)
        fresh = Stamp(len(content), moment, moment, old.inode if old else next(self._inodes))
        self.files[path] = content.encode()
        self.stamps[path] = fresh._replace(**stamp)
        if old is None:
            self.touch_folder(os.path.dirname(path), moment)

    def touch_folder(self, path: str, at: int | None = None) -> None:
        """Creates a folder if there is none, and sets its times."""
        moment = self.now if at is None else at
        inode = self.stamps[path].inode if path in self.stamps else next(self._inodes)
        self.files[path] = None
        self.stamps[path] = Stamp(4096, moment, moment, inode)

    def remove(self, path: str) -> None:
        """Removes a file, which touches its folder."""
        del self.files[path], self.stamps[path]
        self.touch_folder(os.path.dirname(path))

    def stamp(self, path: str) -> Stamp | None:
        return self.stamps.get(os.path.normpath(path))

    def flat_stamps(self, paths: Iterable[str]) -> list[int]:
        return [number for path in paths for number in self.stamp(path) or ABSENT]

    def digest(self, path: str) -> str | None:
        self.hashed.append(path)
        content = self.files.get(os.path.normpath(path))
        return None if content is None else hashlib.sha256(content).hexdigest()

    def exists(self, path: str) -> bool:
        return os.path.normpath(path) in self.files

    def is_file(self, path: str) -> bool:
        return self.files.get(os.path.normpath(path)) is not None

    def names(self, folder: str) -> frozenset[str]:
        base = os.path.normpath(folder).rstrip("/") + "/"
        return frozenset(path[len(base) :].partition("/")[0] for path in self.files if path.startswith(base))

    def now_ns(self) -> int:
        return self.now


class LaterDisk(Disk):
    """The real disk with a clock that is ahead, so that a file which a test has just written counts as unchanged."""

    def now_ns(self) -> int:
        return super().now_ns() + 10 * SECOND


class CaselessDisk(FakeDisk):
    """A fake disk that takes any spelling of a name, as vfat, NTFS and ext4 with `casefold` do."""

    def _spelled(self, path: str) -> str:
        path = os.path.normpath(path)
        return next((name for name in self.files if name.lower() == path.lower()), path)

    def stamp(self, path: str) -> Stamp | None:
        return super().stamp(self._spelled(path))

    def digest(self, path: str) -> str | None:
        return super().digest(self._spelled(path))

    def exists(self, path: str) -> bool:
        return super().exists(self._spelled(path))

    def is_file(self, path: str) -> bool:
        return super().is_file(self._spelled(path))
