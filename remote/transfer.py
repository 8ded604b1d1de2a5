"""Reports how much of a blob has been sent or received."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Report = Callable[[str, int, int], None]
"""Gets the label of a variant, and how many bytes of how many are there; the first call has 0."""


def ignore(_label: str, _done: int, _total: int) -> None:
    """Reports nothing."""


class Reported:
    """A file that reports its position after each read and write."""

    def __init__(self, file: Any, report: Report, label: str, total: int) -> None:
        self._file, self._report, self._label, self._total = file, report, label, total
        report(label, 0, total)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int = -1) -> bytes:
        """Returns bytes of the file."""
        data: bytes = self._file.read(size)
        self._report(self._label, self._file.tell(), self._total)
        return data

    def write(self, data: bytes) -> int:
        """Writes bytes; returns how many."""
        written: int = self._file.write(data)
        self._report(self._label, self._file.tell(), self._total)
        return written
