"""What the manifests say, a line each, so that a listing need not read them: a manifest names hundreds of files.

    v1/summaries    JSON lines: [result, stamp of the manifest, op, abi, target, plan, seconds, file]

Lost or stale, it costs the next listing what it would have saved: a line counts only while the manifest's stamp is its.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from typing import Any, NamedTuple

from opforge.cache.filesystem.disk import Stamp
from opforge.cache.filesystem.files import UNREADABLE, read_json, write_file
from opforge.cache.layout import Layout
from opforge.cache.records.entry import MANIFEST, is_binary_record

FILE = "summaries"
MAX_STALE_LINES = 1000
"""The lines of entries that are gone that may stay, before the file is written anew."""


class Summary(NamedTuple):
    """What a listing says of an entry. `seconds` is how long the build took."""

    op: str
    abi: str
    target: str
    plan: str
    seconds: float
    file: str


class Summaries:
    """The summaries of one store, read once; new ones are kept by `save`."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._path = layout, layout.path(FILE)
        self._lines = 0
        self._known: dict[str, tuple[list[int], Summary]] = {}
        self._new: list[str] = []
        try:
            with open(self._path, "rb") as file:
                for line in file:
                    self._lines += 1
                    self._take(line)
        except OSError:
            return  # none yet

    def _take(self, line: bytes) -> None:
        try:
            result, stamp, *fields = json.loads(line)
            summary = _sound(Summary(*fields))
        except UNREADABLE:
            return  # cut off by a process that was killed
        self._known[str(result)] = (stamp, summary)

    def of(self, result: str, manifest: os.stat_result) -> Summary | None:
        """The summary of the entry whose manifest has this stat; None where the manifest cannot be read."""
        stamp = list(Stamp(manifest.st_size, manifest.st_mtime_ns, manifest.st_ctime_ns, manifest.st_ino))
        known = self._known.get(result)
        if known and known[0] == stamp:
            return known[1]
        try:
            summary = _summary(read_json(os.path.join(self._layout.entry(result), MANIFEST)))
        except UNREADABLE:
            return None
        self._new.append(json.dumps([result, stamp, *summary]) + "\n")
        self._known[result] = (stamp, summary)
        return summary

    def save(self, present: Collection[str]) -> None:
        """Keep what was learnt; forget what is not `present`. Failing to costs the next listing time, nothing else."""
        try:
            if self._lines + len(self._new) > 2 * len(present) + MAX_STALE_LINES:
                kept = [(one, *self._known[one]) for one in present if one in self._known]
                lines = [json.dumps([result, stamp, *summary]) + "\n" for result, stamp, summary in kept]
                write_file(self._path, "".join(lines).encode())
            elif self._new:
                handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                with os.fdopen(handle, "wb") as file:
                    file.write("".join(self._new).encode())
        except OSError:
            return


def _summary(manifest: Any) -> Summary:
    binary, timing = manifest["binary"], manifest.get("built")
    if not is_binary_record(binary):
        raise ValueError("the manifest has no record of a library")
    seconds = float(timing["seconds"]) if isinstance(timing, dict) else 0.0
    op, abi, target = (str(binary[name]) for name in ("op", "abi", "target"))
    return Summary(op, abi, target, str(manifest["plan"]), seconds, str(binary["file"]))


def _sound(summary: Summary) -> Summary:
    texts = (summary.op, summary.abi, summary.target, summary.plan, summary.file)
    if not all(isinstance(one, str) for one in texts) or not isinstance(summary.seconds, float):
        raise ValueError("not a summary")
    return summary
