"""Streams and events for Metal's one queue: every stream is a name for it, so only events and waiting are real."""

from __future__ import annotations

from typing import Any

from opforge.accelerator.fallback.streams import HostStream


def queue_classes(metal: Any) -> tuple[type[Any], type[Any]]:
    """Give (Stream, Event) over `torch.mps`. The event is torch's own, which takes no stream: there is one."""
    theirs: Any = metal.Event

    class Event(theirs):  # type: ignore[misc]  # the base is known only where torch is
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
            metal.synchronize()  # Metal does not tell whether the queue is empty
            return True

        def record_event(self, event: Any = None) -> Any:
            event = Event() if event is None else event
            event.record()
            return event

    return Stream, Event
