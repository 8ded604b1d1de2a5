"""Streams, events and graphs. A device without them gets working emulations on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .device import Devices

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any


class Streams(Devices):
    """The stream and event part of the interface."""

    def _has_streams(self) -> bool:
        return not self.is_synchronized_device() and hasattr(self._device_module(), "Stream")

    @property
    def Stream(self) -> type[Any]:
        """The class of a stream, called as `Stream(device=None, priority=0)`.

        Its objects have synchronize, query, wait_stream, wait_event and record_event.
        """
        if self._has_streams():
            stream_class: type[Any] = self._device_module().Stream
            return stream_class
        from opforge.accelerator.fallback.streams import HostStream

        return HostStream

    @property
    def Event(self) -> type[Any]:
        """The class of an event, called as `Event(enable_timing=False)`.

        Its objects have record, wait, query, synchronize, and elapsed_time(end), in milliseconds.
        """
        if self._has_streams():
            event_class: type[Any] = self._device_module().Event
            return event_class
        from opforge.accelerator.fallback.streams import HostEvent

        return HostEvent

    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Returns a context manager in which the stream is the current one; None changes nothing."""
        if self._has_streams():
            context: AbstractContextManager[Any] = self._device_module().stream(stream)
            return context
        from opforge.accelerator.fallback.streams import stream_scope

        return stream_scope(stream)

    def current_stream(self, device_index: int | None = None) -> Any:
        """Returns the stream that new work is queued on."""
        if self._has_streams():
            return self._device_module().current_stream(device_index)
        from opforge.accelerator.fallback.streams import current_stream

        return current_stream()

    def default_stream(self, device_index: int | None = None) -> Any:
        """Returns the stream that is current if no other was chosen."""
        if self._has_streams():
            module = self._device_module()
            # torch.xpu has no default_stream: outside every scope the current stream is the default one.
            return getattr(module, "default_stream", module.current_stream)(device_index)
        from opforge.accelerator.fallback.streams import DEFAULT_STREAM

        return DEFAULT_STREAM

    def raw_stream_function(self) -> Callable[[int], int]:
        """Returns a function from a device's number to the driver's handle of the stream that is current there.

        Kernel launchers keep the function and call it at every launch, so it is torch's own C function. On a device
        without streams it returns 0. Raises NotImplementedError if torch has no such function for the device.
        """
        if not self._has_streams():
            return lambda device_index: 0
        import torch

        function: Callable[[int], int] | None = getattr(torch._C, f"_{self.torch_device}_getCurrentRawStream", None)
        if function is None:
            raise NotImplementedError(f"{self.name}: torch has no function for the handle of the current stream")
        return function


class Graphs(Devices):
    """The graph part of the interface."""

    def _graph_class(self) -> type[Any] | None:
        """Returns torch's class of a graph on this device. None if the device captures no graphs."""
        if self.is_synchronized_device():
            return None
        module = self._device_module()
        graph_class: type[Any] | None = getattr(module, f"{self.torch_device.upper()}Graph", None)
        return graph_class if hasattr(module, "graph") else None

    def is_current_stream_capturing(self) -> bool:
        """Returns whether new work is captured into a graph."""
        if self._graph_class() is not None:
            return bool(self._device_module().is_current_stream_capturing())
        from opforge.accelerator.fallback.graph import is_recording

        return is_recording()

    def create_graph(self) -> Any:
        """Returns an empty graph, to be filled by `capture_to_graph`."""
        graph_class = self._graph_class()
        if graph_class is not None:
            return graph_class()
        from opforge.accelerator.fallback.graph import RecordedGraph

        return RecordedGraph()

    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> AbstractContextManager[Any]:
        """Returns a context manager that captures the work of its body into the graph.

        A device captures the body without running it. The emulation for a device without graphs also runs it, so that
        its results exist immediately, and ignores `pool` and `stream`.
        """
        if self._graph_class() is not None:
            context: AbstractContextManager[Any] = self._device_module().graph(graph, pool=pool, stream=stream)
            return context
        from opforge.accelerator.fallback.graph import recording

        return recording(graph)

    def replay_graph(self, graph: Any) -> None:
        """Runs the captured work again on the same tensors: it reads the inputs anew and overwrites the outputs.

        Raises RuntimeError if nothing was captured.
        """
        graph.replay()
