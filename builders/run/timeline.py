"""What a run of builds did when, written in the format of chrome://tracing and ui.perfetto.dev."""

from __future__ import annotations

import heapq
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_current: ContextVar[Timeline | None] = ContextVar("timeline", default=None)
COMPILERS = 0
"""The process under which a trace shows the compilers, each in a row of its own."""
NINJA_LOG = ".ninja_log"


class Timeline:
    """Collects events of all threads. Times are seconds of `time.time()`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began = time.time()
        self._events: list[dict[str, Any]] = []
        self._steps: list[tuple[float, float, dict[str, Any]]] = []

    def add(self, name: str, began: float, ended: float, **told: object) -> None:
        """Something that the calling thread did."""
        event = self._event(name, "op", began, ended, (os.getpid(), threading.get_native_id()), told)
        with self._lock:
            self._events.append(event)

    def add_steps(self, op: str, folder: str, titles: Mapping[str, str], offset: int, ended: float) -> None:
        """The compiler steps of a run of ninja that ended at `ended`, from what its log holds after `offset` bytes."""
        steps = read_log(folder, offset)
        if not steps:
            return
        start = ended - max(one[1] for one in steps) / 1000  # ninja ends with its last step, and its clock starts at 0
        with self._lock:
            for first, last, output in steps:
                told = {"op": op, "output": output}
                name = titles.get(output, output)
                self._steps.append((start + first / 1000, start + last / 1000, {"name": f"{op}: {name}", "told": told}))

    def _event(
        self, name: str, category: str, began: float, ended: float, row: tuple[int, int], told: Mapping[str, object]
    ) -> dict[str, Any]:
        event: dict[str, Any] = {"name": name, "cat": category, "ph": "X", "pid": row[0], "tid": row[1]}
        event["ts"] = round((began - self._began) * 1e6)
        # Of two that follow each other, the first must not end after the second's beginning, not by rounding either.
        event["dur"] = max(0, round((ended - self._began) * 1e6) - event["ts"])
        return event | {"args": dict(told)}

    def to_json(self) -> dict[str, Any]:
        """The trace: one complete event for each thing; steps that ran at the same time stand in rows of their own."""
        with self._lock:
            events, steps = list(self._events), sorted(self._steps, key=lambda one: one[:2])
        free: list[int] = []
        busy: list[tuple[float, int]] = []
        rows = 0
        for began, ended, told in steps:
            while busy and busy[0][0] <= began:
                heapq.heappush(free, heapq.heappop(busy)[1])
            if not free:
                rows += 1
                free.append(rows)
            row = heapq.heappop(free)
            heapq.heappush(busy, (ended, row))
            events.append(self._event(told["name"], "step", began, ended, (COMPILERS, row), told["told"]))
        names = {(COMPILERS, row): f"compiler {row}" for row in range(1, rows + 1)}
        threads = dict.fromkeys((event["pid"], event["tid"]) for event in events if event["cat"] == "op")
        names |= {place: f"builds {number}" for number, place in enumerate(threads, 1)}
        meta = [_name("thread_name", *place, name) for place, name in names.items()]
        meta += [_name("process_name", COMPILERS, 0, "compilers"), _name("process_name", os.getpid(), 0, "ops")]
        return {"traceEvents": [*meta, *sorted(events, key=lambda one: one["ts"])], "displayTimeUnit": "ms"}


def _name(kind: str, process: int, row: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": row, "args": {"name": name}}


def read_log(folder: str, offset: int = 0) -> list[tuple[int, int, str]]:
    """(start, end, output) of each step in a ninja log, in milliseconds since that ninja started."""
    try:
        with open(os.path.join(folder, NINJA_LOG), encoding="utf-8", errors="replace") as file:
            file.seek(offset)
            lines = file.read().splitlines()
    except OSError:
        return []
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    return [(int(row[0]), int(row[1]), row[3]) for row in rows if len(row) == 5]


def log_size(folder: str) -> int:
    """How many bytes a ninja log has by now."""
    try:
        return os.path.getsize(os.path.join(folder, NINJA_LOG))
    except OSError:
        return 0


def current() -> Timeline | None:
    """The timeline of this thread's builds, or None where nobody asked for one."""
    return _current.get()


def use(timeline: Timeline | None) -> None:
    """Have what this thread does recorded in `timeline`, until it says otherwise."""
    _current.set(timeline)


@contextmanager
def span(name: str) -> Iterator[None]:
    """Record how long the body takes, where a timeline is in use."""
    began, timeline = time.time(), _current.get()
    try:
        yield
    finally:
        if timeline is not None:
            timeline.add(name, began, time.time())


def mark(name: str, began: float) -> float:
    """Record what began at `began` and ends now; returns now."""
    now, timeline = time.time(), _current.get()
    if timeline is not None:
        timeline.add(name, began, now)
    return now
