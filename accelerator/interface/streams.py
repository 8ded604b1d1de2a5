"""Streams, events and graphs. A device without them gets working emulations on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opforge.lazy import cached_property

from .device import Devices

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any

    from torch.types import Device


class Streams(Devices):
    """The stream and event part of the interface."""

    def _has_streams(self) -> bool:
        return not self.is_synchronized_device() and hasattr(self._device_module(), "Stream")

    @cached_property
    def _streams(self) -> Any:
        """Torch's module for the device if it has streams, else the emulation, which has the same names."""
        if self._has_streams():
            return self._device_module()
        from opforge.accelerator.fallback import streams

        return streams

    @cached_property
    def Stream(self) -> type[Any]:
        """The class of a stream, called as `Stream(device=None, priority=0)`.

        Its objects have synchronize, query, wait_stream, wait_event and record_event.
        """
        stream_class: type[Any] = self._streams.Stream
        return stream_class

    @cached_property
    def Event(self) -> type[Any]:
        """The class of an event, called as `Event(enable_timing=False)`.

        Its objects have record, wait, query, synchronize, and elapsed_time(end), in milliseconds.
        """
        event_class: type[Any] = self._streams.Event
        return event_class

    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Returns a context manager in which the stream is the current one; None changes nothing."""
        context: AbstractContextManager[Any] = self._streams.stream(stream)
        return context

    def current_stream(self, device_index: Device = None) -> Any:
        """Returns the stream that new work is queued on."""
        index = None if device_index is None else self.index_of(device_index)
        return self._streams.current_stream(index)

    def default_stream(self, device_index: Device = None) -> Any:
        """Returns the stream that is current if no other was chosen."""
        streams = self._streams
        # torch.xpu has no default_stream: outside every scope the current stream is the default one.
        return getattr(streams, "default_stream", streams.current_stream)(self.index_of(device_index))

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

    def _captures_graphs(self) -> bool:
        """Returns whether the device captures graphs. If not, they are emulated."""
        if self.is_synchronized_device():
            return False
        module = self._device_module()
        return hasattr(module, self._graph_name()) and hasattr(module, "graph")

    def _graph_name(self) -> str:
        return f"{self.torch_device.upper()}Graph"

    @cached_property
    def _graphs(self) -> Any:
        """Torch's module for the device if it captures graphs, else the emulation, which has the same names."""
        if self._captures_graphs():
            return self._device_module()
        from opforge.accelerator.fallback import graph

        return graph

    @cached_property
    def _graph_class(self) -> type[Any]:
        graph_class: type[Any] = getattr(self._graphs, self._graph_name() if self._captures_graphs() else "Graph")
        return graph_class

    def is_current_stream_capturing(self) -> bool:
        """Returns whether new work is captured into a graph."""
        return bool(self._graphs.is_current_stream_capturing())

    def create_graph(self) -> Any:
        """Returns an empty graph, to be filled by `capture_to_graph`."""
        return self._graph_class()

    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> AbstractContextManager[Any]:
        """Returns a context manager that captures the work of its body into the graph.

        A device captures the body without running it. The emulation for a device without graphs also runs it, so that
        its results exist immediately, and ignores `pool` and `stream`.
        """
        context: AbstractContextManager[Any] = self._graphs.graph(graph, pool=pool, stream=stream)
        return context

    def replay_graph(self, graph: Any) -> None:
        """Runs the captured work again on the same tensors: it reads the inputs anew and overwrites the outputs.

        Raises RuntimeError if nothing was captured.
        """
        graph.replay()
