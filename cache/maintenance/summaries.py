"""A line for each entry, so that a listing need not read their records.

    v2/summaries    JSON lines: [entry key, stamp of the record, op, abi, target, plan, seconds, file]

A line is used only while the record's stamp is as recorded. Without the file, the next listing reads the records.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from contextlib import suppress
from typing import Any, NamedTuple

from opforge.cache.filesystem.disk import Stamp
from opforge.cache.layout import Layout
from opforge.cache.records.entry import read_record
from opforge.foundation.files import open_to_append, read_file, write_file
from opforge.foundation.remembered_values import UNREADABLE

FILE = "summaries"
MAX_STALE_LINES = 1000
"""How many lines of entries that are gone may stay before the file is written anew."""


class Summary(NamedTuple):
    """The row of an entry in a listing. `seconds` is how long the build took."""

    op: str
    abi: str
    target: str
    plan: str
    seconds: float
    file: str


class Summaries:
    """The summaries of one store, read once. `save` writes the new ones."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._path = layout, layout.path(FILE)
        self._lines = 0
        self._summaries: dict[str, tuple[list[int], Summary]] = {}
        self._new: list[str] = []
        with suppress(OSError, ValueError):  # none yet, or no file of ours
            for line in read_file(self._path).splitlines():
                self._lines += 1
                self._add(line)

    def _add(self, line: bytes) -> None:
        try:
            key, stamp, *fields = json.loads(line)
            summary = _checked(Summary(*fields))
        except UNREADABLE:
            return  # cut off by a process that was killed
        self._summaries[str(key)] = (stamp, summary)

    def get(self, key: str, record: os.stat_result) -> Summary | None:
        """Returns the summary of the entry whose record has this status; None if the record cannot be read."""
        stamp = list(Stamp(record.st_size, record.st_mtime_ns, record.st_ctime_ns, record.st_ino))
        saved_stamp, saved = self._summaries.get(key, ([], None))
        if saved and saved_stamp == stamp:
            return saved
        try:
            summary = _summary(read_record(self._layout.entry(key)))
        except UNREADABLE:  # a record that only `verify` compares with its schema
            return None
        self._new.append(json.dumps([key, stamp, *summary]) + "\n")
        self._summaries[key] = (stamp, summary)
        return summary

    def save(self, keys: Collection[str]) -> None:
        """Writes the new summaries, and drops those of other entries than `keys` when there are too many.

        If that fails, the next listing reads more records.
        """
        with suppress(OSError):
            is_long = self._lines + len(self._new) > 2 * len(keys) + MAX_STALE_LINES
            if is_long or (self._new and not self._append()):
                kept = [(key, *self._summaries[key]) for key in keys if key in self._summaries]
                lines = [json.dumps([key, stamp, *summary]) + "\n" for key, stamp, summary in kept]
                write_file(self._path, "".join(lines).encode())

    def _append(self) -> bool:
        """Appends the new lines. Returns False if the file cannot be appended to: it must be written anew."""
        try:
            handle = open_to_append(self._path, os.O_CREAT)
        except OSError:
            return False
        with os.fdopen(handle, "wb") as file:
            file.write("".join(self._new).encode())
        return True


def _summary(record: Any) -> Summary:
    """Returns the summary of a record. Raises one of UNREADABLE if it is none."""
    op, abi, target, plan, file = (str(record[name]) for name in ("op", "abi", "target", "plan", "file"))
    return Summary(op, abi, target, plan, float(record["seconds"]), file)


def _checked(summary: Summary) -> Summary:
    """Returns the summary. Raises ValueError if a field has another type."""
    texts = (summary.op, summary.abi, summary.target, summary.plan, summary.file)
    if not all(isinstance(text, str) for text in texts) or not isinstance(summary.seconds, float):
        raise ValueError("not a summary")
    return summary
