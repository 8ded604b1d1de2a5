"""Reads the fields of a file that may be damaged: never outside its bounds, and never without end."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmap import mmap

WORK_PER_BYTE, MIN_WORK = 4, 64 << 10
"""The limit on work: bytes that may be read for each byte of the file, and what every file may use. Intact files need
less than two for each. What costs more refers to the same bytes again and again."""


class FileFormatError(ValueError):
    """A file is damaged, or of another kind than expected. The message says what is wrong, and at which byte."""


class Work:
    """The work that is left for reading a file."""

    def __init__(self, size: int) -> None:
        self.left = WORK_PER_BYTE * size + MIN_WORK

    def spend(self, amount: int, name: str) -> None:
        """Counts bytes that were read. Raises FileFormatError if they are more than an intact file needs."""
        self.left -= amount
        if self.left < 0:
            raise FileFormatError(f"{name} is damaged: its parts refer to the same bytes again and again")


class Reader:
    """A range of a file's bytes. Positions are relative to it. Parts share the bytes and the work of the whole."""

    def __init__(
        self,
        data: bytes | mmap,
        name: str = "the file",
        start: int = 0,
        end: int | None = None,
        work: Work | None = None,
    ) -> None:
        self.name, self._data, self._start = name, data, start
        self._end = len(data) if end is None else end
        self.work = work or Work(len(data))

    def __len__(self) -> int:
        return self._end - self._start

    @property
    def start(self) -> int:
        """Where this part begins in the whole file."""
        return self._start

    def damaged(self, problem: str) -> FileFormatError:
        """Returns the error that this part of the file is damaged."""
        return FileFormatError(f"{self.name} is damaged: {problem}")

    def _check(self, at: int, size: int, what: str) -> int:
        """Returns the absolute position of bytes of this part. Raises FileFormatError if they are not all there."""
        if at < 0 or at + size > len(self):
            raise self.damaged(f"{what} would end at byte {at + size}, beyond its {len(self)} bytes")
        return self._start + at

    def part(self, at: int, size: int, name: str) -> Reader:
        """Returns a part of this part, for what `name` says. Raises FileFormatError if it is not all there."""
        start = self._check(at, size, name)
        return Reader(self._data, name, start, start + size, self.work)

    def content(self, at: int, size: int, what: str) -> bytes:
        """Returns a copy of bytes. Raises FileFormatError if they are not all there."""
        start = self._check(at, size, what)
        self.work.spend(size, self.name)
        return self._data[start : start + size]

    def unpack(self, layout: struct.Struct, at: int, what: str) -> tuple[Any, ...]:
        """Returns the fields at a position. Raises FileFormatError if they are not all there."""
        start = self._check(at, layout.size, what)
        self.work.spend(layout.size, self.name)
        return layout.unpack_from(self._data, start)

    def find(self, pattern: bytes, at: int = 0) -> int:
        """Returns the first position of a pattern from `at` on, or -1."""
        start = self._start + min(at, len(self))
        position = self._data.find(pattern, start, self._end)
        self.work.spend((self._end if position < 0 else position) - start, self.name)
        return position if position < 0 else position - self._start

    def starts_with(self, pattern: bytes) -> bool:
        """Returns whether this part begins with a pattern."""
        return self._data[self._start : min(self._start + len(pattern), self._end)] == pattern

    def text(self, at: int, what: str) -> str:
        """Returns the text from a position to the next zero byte. Raises FileFormatError if there is none."""
        end = self.find(b"\0", at) if 0 <= at < len(self) else -1
        if end < 0:
            raise self.damaged(f"{what} at byte {at} has no end")
        return printable(self._data[self._start + at : self._start + end])


def printable(name: bytes) -> str:
    """Returns a name as text. Escapes control characters, with which a file could write to the reader's terminal."""
    text = name.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
