"""A graph for devices that capture none: it records a block's torch operations, and replays them on the same tensors.

`Graph`, `graph` and `is_current_stream_capturing` are named as in torch's modules for devices.
As with a device's graph, the tensors are fixed at capture: copy new values into the inputs, replay, read the outputs.
Python between the operations (branches, `.item()`) is not recorded, and tensors that the block allocated stay alive.
This module imports torch, because a base class comes from it; so only functions that need a graph import the module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Thread(local):
    recording = False


_thread = _Thread()
_Step = tuple[Any, tuple[Any, ...], dict[str, Any], list[Any]]
"""An operation, its arguments, and its results: None instead of a result that shares memory with an argument."""


class RecordedGraph:
    """The operations of one captured block, in order."""

    _steps: list[_Step] | None = None
    _inference = False

    def replay(self) -> None:
        """Runs the operations again, and writes the results into the tensors of the capture. Autograd records nothing.

        Raises RuntimeError if the graph is empty.
        """
        if self._steps is None:
            raise RuntimeError("The graph is empty: fill it with capture_to_graph(graph) before replaying it.")
        # Tensors created in inference mode can be written only in inference mode.
        with torch.inference_mode() if self._inference else torch.no_grad():
            for operation, args, kwargs, results in self._steps:
                for result, new in zip(results, tree_leaves(operation(*args, **kwargs)), strict=True):
                    if result is not None:
                        result.detach().copy_(new)

    def reset(self) -> None:
        """Drops the captured operations and their memory."""
        self._steps = None


Graph = RecordedGraph


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves these two untyped
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[_Step] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        # Replaying the operation updates a result that shares memory with an argument; every other result must be
        # copied. The operation's schema does not show which: reshape may or may not copy.
        shared = {_memory(value) for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)}
        fresh = [
            value if isinstance(value, torch.Tensor) and _memory(value) not in shared else None
            for value in tree_leaves(results)
        ]
        self.steps.append((func, args, kwargs, fresh))
        return results


def _memory(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # a sparse tensor has no storage of its own
        return -id(tensor)


@contextmanager
def graph(
    graph: RecordedGraph, pool: object = None, stream: object = None, capture_error_mode: str = ""
) -> Iterator[RecordedGraph]:
    """Runs the block, and stores its operations in the graph; a block that raises leaves the graph empty.

    The other arguments are ignored.
    Raises RuntimeError if the graph is not empty.
    """
    if graph._steps is not None:
        raise RuntimeError("The graph is full: create another, or reset() this one, before capturing again.")
    graph._inference = torch.is_inference_mode_enabled()
    previous = is_current_stream_capturing()
    _thread.recording = True
    try:
        with _Recorder() as recorder:
            yield graph
    finally:
        _thread.recording = previous
    graph._steps = recorder.steps


def is_current_stream_capturing() -> bool:
    """Returns whether the calling thread is inside `graph`."""
    return _thread.recording
