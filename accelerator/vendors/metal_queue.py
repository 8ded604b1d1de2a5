"""Streams and events for Metal, which has one queue: every stream is that queue, and only events and waits do work."""

from __future__ import annotations

from typing import Any

from opforge.accelerator.fallback.streams import HostStream


def queue_classes(metal: Any) -> tuple[type[Any], type[Any]]:
    """Returns (Stream, Event) over `torch.mps`. Its own events take no stream, because there is one queue."""
    metal_event: Any = metal.Event

    class Event(metal_event):  # type: ignore[misc]  # the base class is known only at run time
        def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
            super().__init__(enable_timing)

        def record(self, stream: Any = None) -> None:
            super().record()

        def wait(self, stream: Any = None) -> None:
            super().wait()

    class Stream(HostStream):
        def synchronize(self) -> None:
            metal.synchronize()

        def query(self) -> bool:
            metal.synchronize()  # Metal cannot report whether the queue is empty, so empty it
            return True

        def record_event(self, event: Any = None) -> Any:
            event = Event() if event is None else event
            event.record()
            return event

    return Stream, Event
