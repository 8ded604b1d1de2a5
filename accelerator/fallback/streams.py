"""Streams and events for synchronous devices: there is nothing to wait for, and events measure time.

The names are those of torch's modules for devices: `Stream`, `Event`, `stream`, `set_stream`, `current_stream` and
`default_stream`.
"""

from __future__ import annotations

import time
from threading import local
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


class HostEvent:
    """A point in time. Earlier work is finished already, so an event is reached when it is recorded."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.enable_timing = enable_timing
        self._recorded_ns: int | None = None

    def record(self, stream: HostStream | None = None) -> None:
        """Stores the time, in place of one stored before."""
        self._recorded_ns = time.perf_counter_ns()

    def query(self) -> bool:
        """Returns True: the work before the event is finished."""
        return True

    def synchronize(self) -> None:
        """Returns immediately: the work before the event is finished."""

    def wait(self, stream: HostStream | None = None) -> None:
        """Returns immediately: the stream has nothing to wait for."""

    def elapsed_time(self, end_event: HostEvent) -> float:
        """Returns the milliseconds from this event to `end_event`, by the host's monotonic clock.

        Raises RuntimeError if either was created without `enable_timing=True` or was not recorded, as on a device.
        """
        return (end_event._time("second") - self._time("first")) / 1e6

    def _time(self, which: str) -> int:
        if not self.enable_timing:
            raise RuntimeError(f"The {which} event records no time: create it with Event(enable_timing=True).")
        if self._recorded_ns is None:
            raise RuntimeError(f"The {which} event was never recorded: call its record() first.")
        return self._recorded_ns


class HostStream:
    """A queue that is always empty, because work finishes before the call that starts it returns."""

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self.device, self.priority = device, priority

    def synchronize(self) -> None:
        """Returns immediately: nothing is queued."""

    def query(self) -> bool:
        """Returns True: nothing is queued."""
        return True

    def wait_event(self, event: HostEvent) -> None:
        """Returns immediately: the event is reached already."""

    def wait_stream(self, stream: HostStream) -> None:
        """Returns immediately: the other stream is empty."""

    def record_event(self, event: HostEvent | None = None) -> HostEvent:
        """Records the event, or a new one, and returns it."""
        event = HostEvent() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> HostStream:
        scope = stream_scope(self)
        scope.__enter__()
        _thread.__dict__.setdefault("scopes", []).append(scope)  # by thread, since several may enter one stream
        return self

    def __exit__(self, *error: object) -> None:
        _thread.scopes.pop().__exit__(None, None, None)


class stream_scope:
    """A scope in which the stream is the calling thread's current one; None changes nothing."""

    __slots__ = ("_previous", "stream")

    def __init__(self, stream: HostStream | None) -> None:
        if stream is not None:
            require_stream(stream)
        self.stream = stream

    def __enter__(self) -> HostStream | None:
        self._previous: HostStream = current_stream()
        if self.stream is not None:
            _thread.stream = self.stream
        return self.stream

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _thread.stream = self._previous


DEFAULT_STREAM = HostStream()


class _Thread(local):
    stream: HostStream = DEFAULT_STREAM


_thread = _Thread()
Stream, Event, stream = HostStream, HostEvent, stream_scope


def current_stream(device: object = None) -> HostStream:
    """Returns the calling thread's current stream, whatever the device."""
    return _thread.stream


def set_stream(stream: HostStream) -> None:
    """Makes the stream the calling thread's current one. Raises TypeError if it is none."""
    require_stream(stream)
    _thread.stream = stream


def require_stream(value: object) -> None:
    """Raises TypeError unless the value is a stream of this module, of `torch.cpu`, or a `torch.Stream`."""
    if not hasattr(value, "wait_stream"):
        raise TypeError(f"{value!r:.100} is not a stream: expected Stream(), current_stream() or None")


def default_stream(device: object = None) -> HostStream:
    """Returns the stream that is current outside of scopes."""
    return DEFAULT_STREAM
