"""Streams and events for devices that finish work before the call returns: nothing to wait for, but time is real."""

from __future__ import annotations

import time
from threading import local
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


class HostEvent:
    """A point in time. What was asked for before it is done, so it is reached as soon as it is recorded."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.enable_timing = enable_timing
        self._recorded_ns: int | None = None

    def record(self, stream: HostStream | None = None) -> None:
        """Remember the time; recording again forgets the earlier one."""
        self._recorded_ns = time.perf_counter_ns()

    def query(self) -> bool:
        """Whether the work before the event is done: always."""
        return True

    def synchronize(self) -> None:
        """Return at once: the work before the event is done."""

    def wait(self, stream: HostStream | None = None) -> None:
        """Return at once: the stream has nothing to wait for."""

    def elapsed_time(self, end_event: HostEvent) -> float:
        """Give the milliseconds from this event to `end_event`, by the host's monotonic clock.

        RuntimeError where either was made without `enable_timing=True` or was not recorded, as on a device.
        """
        return (end_event._time("second") - self._time("first")) / 1e6

    def _time(self, which: str) -> int:
        if not self.enable_timing:
            raise RuntimeError(f"The {which} event keeps no time: create it with Event(enable_timing=True).")
        if self._recorded_ns is None:
            raise RuntimeError(f"The {which} event was never recorded: call its record() first.")
        return self._recorded_ns


class HostStream:
    """A queue that is always empty: work is done before the call that asked for it returns."""

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self.device, self.priority = device, priority

    def synchronize(self) -> None:
        """Return at once: nothing is queued."""

    def query(self) -> bool:
        """Whether everything queued is done: always."""
        return True

    def wait_event(self, event: HostEvent) -> None:
        """Return at once: the event is reached already."""

    def wait_stream(self, stream: HostStream) -> None:
        """Return at once: the other stream is empty."""

    def record_event(self, event: HostEvent | None = None) -> HostEvent:
        """Record the event, or a new one, and give it back."""
        event = HostEvent() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> HostStream:
        scope = stream_scope(self)
        scope.__enter__()
        _thread.__dict__.setdefault("scopes", []).append(scope)  # not here: another thread may enter this stream too
        return self

    def __exit__(self, *problem: object) -> None:
        _thread.scopes.pop().__exit__(None, None, None)


class stream_scope:
    """In which the stream is the calling thread's current one; None changes nothing."""

    def __init__(self, stream: HostStream | None) -> None:
        self.stream = stream
        self._before: HostStream | None = None

    def __enter__(self) -> HostStream | None:
        self._before = current_stream()
        if self.stream is not None:
            _thread.stream = self.stream
        return self.stream

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        _thread.stream = self._before


DEFAULT_STREAM = HostStream()
_thread = local()


def current_stream() -> HostStream:
    """Give the calling thread's current stream."""
    stream: HostStream = getattr(_thread, "stream", DEFAULT_STREAM)
    return stream
