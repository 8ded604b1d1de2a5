"""Graphs of `torch.accelerator`, under the names of torch's modules for devices: for a device whose module has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import local
from types import SimpleNamespace
from typing import Any


class _Thread(local):
    captures = 0


_thread = _Thread()


def of(graph_class: Callable[[], Any]) -> SimpleNamespace | None:
    """Returns `Graph`, `graph` and `is_current_stream_capturing` over `torch.accelerator.Graph`.

    None if the device has no graphs: torch's class then refuses to make one.
    """
    try:
        graph_class()
    except RuntimeError:  # NotImplementedError is one, too
        return None
    return SimpleNamespace(Graph=graph_class, graph=graph, is_current_stream_capturing=is_current_stream_capturing)


@contextmanager
def graph(graph: Any, pool: Any = None, stream: Any = None, capture_error_mode: str = "default") -> Iterator[Any]:
    """Captures the block into a graph, on the stream if one is given."""
    graph.graph_pool, graph.capture_error_mode = pool, capture_error_mode
    _thread.captures += 1
    try:
        with stream or nullcontext(), graph:
            yield graph
    finally:
        _thread.captures -= 1


def is_current_stream_capturing() -> bool:
    """Returns whether the calling thread is inside `graph`."""
    return _thread.captures > 0
