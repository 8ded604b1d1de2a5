"""Records the steps of a run of builds with their times, for chrome://tracing and ui.perfetto.dev."""

from __future__ import annotations

import heapq
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

_current: ContextVar[Timeline | None] = ContextVar("timeline", default=None)
COMPILERS = 0
"""The process id under which a trace shows the compilers, one a row."""
NINJA_LOG = ".ninja_log"


class _Span(NamedTuple):
    """Something that took time. Times are seconds of `time.time()`."""

    began: float
    ended: float
    name: str
    details: Mapping[str, object]


class Timeline:
    """Collects the events of all threads. Times are seconds of `time.time()`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.began = time.time()
        """The zero of the trace's times."""
        self._events: list[dict[str, Any]] = []
        self._steps: list[_Span] = []

    def add(self, name: str, began: float, ended: float, **details: object) -> None:
        """Records something that the calling thread did; the trace shows `details` with it."""
        row = (os.getpid(), threading.get_native_id())
        event = self._event(_Span(began, ended, name, details), "op", row)
        with self._lock:
            self._events.append(event)

    def add_steps(self, op: str, folder: str, titles: Mapping[str, str], offset: int, ended: float) -> None:
        """Records the steps of a run of ninja that ended at `ended`, from its log after `offset` bytes.

        `titles` maps the output of each step to its title.
        """
        steps = read_log(folder, offset)
        if not steps:
            return
        # ninja's clock starts at 0, and ninja ends with its last step.
        start = ended - max(last for _first, last, _output in steps) / 1000
        with self._lock:
            for first, last, output in steps:
                name = f"{op}: {titles.get(output, output)}"
                details = {"op": op, "output": output}
                self._steps.append(_Span(start + first / 1000, start + last / 1000, name, details))

    def _event(self, span: _Span, category: str, row: tuple[int, int]) -> dict[str, Any]:
        """Returns a complete event; `row` is (process, thread)."""
        event: dict[str, Any] = {"name": span.name, "cat": category, "ph": "X", "pid": row[0], "tid": row[1]}
        event["ts"] = round((span.began - self.began) * 1e6)
        # Both ends are rounded, not the duration: otherwise adjacent events could overlap by a microsecond.
        event["dur"] = max(0, round((span.ended - self.began) * 1e6) - event["ts"])
        return event | {"args": dict(span.details)}

    def to_json(self) -> dict[str, Any]:
        """Returns the trace: one complete event for each span. Steps that ran at the same time have different rows."""
        with self._lock:
            events, steps = list(self._events), sorted(self._steps, key=lambda step: (step.began, step.ended))
        free: list[int] = []
        busy: list[tuple[float, int]] = []
        row_count = 0
        for step in steps:
            while busy and busy[0][0] <= step.began:
                heapq.heappush(free, heapq.heappop(busy)[1])
            if not free:
                row_count += 1
                free.append(row_count)
            row = heapq.heappop(free)
            heapq.heappush(busy, (step.ended, row))
            events.append(self._event(step, "step", (COMPILERS, row)))
        names = {(COMPILERS, row): f"compiler {row}" for row in range(1, row_count + 1)}
        threads = dict.fromkeys((event["pid"], event["tid"]) for event in events if event["cat"] == "op")
        names |= {thread: f"builds {number}" for number, thread in enumerate(threads, 1)}
        meta = [_name("thread_name", *row, name) for row, name in names.items()]
        meta += [_name("process_name", COMPILERS, 0, "compilers"), _name("process_name", os.getpid(), 0, "ops")]
        return {"traceEvents": [*meta, *sorted(events, key=lambda event: event["ts"])], "displayTimeUnit": "ms"}


def _name(kind: str, process: int, row: int, name: str) -> dict[str, Any]:
    """Returns the event that names a process or a row."""
    return {"name": kind, "ph": "M", "pid": process, "tid": row, "args": {"name": name}}


def read_log(folder: str, offset: int = 0) -> list[tuple[int, int, str]]:
    """Returns (start, end, output) of each step in a ninja log, in milliseconds since that ninja started."""
    try:
        with open(os.path.join(folder, NINJA_LOG), encoding="utf-8", errors="replace") as file:
            file.seek(offset)
            lines = file.read().splitlines()
    except OSError:
        return []
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    return [(int(row[0]), int(row[1]), row[3]) for row in rows if len(row) == 5]


def log_size(folder: str) -> int:
    """Returns the size of a ninja log in bytes; 0 if there is none."""
    try:
        return os.path.getsize(os.path.join(folder, NINJA_LOG))
    except OSError:
        return 0


def current() -> Timeline | None:
    """Returns the timeline of this thread's builds, or None if there is none."""
    return _current.get()


def use(timeline: Timeline | None) -> None:
    """Records what this thread does in `timeline`, until the next call."""
    _current.set(timeline)


@contextmanager
def span(name: str) -> Iterator[None]:
    """Records how long the body takes, if a timeline is in use."""
    began = time.time()
    try:
        yield
    finally:
        mark(name, began)


def mark(name: str, began: float) -> float:
    """Records what began at `began` and ends now, if a timeline is in use. Returns the present time."""
    now, timeline = time.time(), _current.get()
    if timeline is not None:
        timeline.add(name, began, now)
    return now
