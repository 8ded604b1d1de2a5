"""The result of a call of the process group, and the threads that run calls in the background."""

from __future__ import annotations

import functools
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import Work


class CallInGroup(Work):
    """A call that may still run. `wait` raises the call's exception."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self._value = value
        self.sources: list[int] = []
        """The ranks of messages that any rank could send."""
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._future: Any = None
        self._lock = threading.Lock()

    def finish(self, error: BaseException | None) -> None:
        """Ends the call, with its exception."""
        with self._lock:
            self._error = error
            self._done.set()
            future = self._future
        if future is not None:
            self._fill(future)

    def _fill(self, future: Any) -> None:
        if self._error is None:
            future.set_result(self._value)
        else:
            future.set_exception(self._error)

    def wait(self, timeout: Any = None) -> bool:
        """Waits for the call's end. Raises the call's exception, and TimeoutError after `timeout`, a timedelta."""
        seconds = timeout.total_seconds() if timeout else None
        if not self._done.wait(seconds):
            raise TimeoutError(f"a call of the process group has not ended after {seconds:g} seconds")
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> Any:
        """Returns a torch.futures.Future of the tensors."""
        with self._lock:
            if self._future is not None:
                return self._future
            future = self._future = torch.futures.Future()
            if not self._done.is_set():
                return future
        self._fill(future)
        return future

    def _source_rank(self) -> int:
        return self.sources[-1]

    source_rank = _source_rank

    def is_completed(self) -> bool:
        return self._done.is_set()

    def is_success(self) -> bool:
        return self._done.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> Any:
        return self._value


@functools.cache
def ended() -> CallInGroup:
    """Returns the work of every call that ended before it returned: making one costs more than a small call."""
    work = CallInGroup(())
    work.finish(None)
    return work


class Lane:
    """Calls that run in their order: at once in the thread that makes them, or in a thread of the lane.

    A call that need not wait for earlier ones runs at once if the caller waits for it anyway. The thread ends with the
    lane.
    """

    def __init__(self) -> None:
        self._line = _Line()
        self._has_thread = False

    def run(self, call: Callable[[], None], value: Any, is_async: bool) -> CallInGroup:
        """Returns the call's work. Unless `is_async`, it has ended, and what the call raises is raised."""
        line = self._line
        if not is_async and not line.pending:
            call()
            return ended()
        work = CallInGroup(value)
        with line.lock:
            line.pending += 1
            line.calls.put((call, work))
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=line.serve, name="opforge_shm", daemon=True).start()
                weakref.finalize(self, line.calls.put, None).atexit = False
        if not is_async:
            work.wait()
        return work


class _Line:
    """State of a lane's thread. It does not refer to the lane, so that the lane can be freed and the thread ends."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[tuple[Callable[[], None], CallInGroup] | None] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.pending = 0

    def serve(self) -> None:
        """Runs the calls until the lane has ended."""
        while item := self.calls.get():
            call, work = item
            error: BaseException | None = None
            try:
                call()
            except BaseException as problem:
                error = problem
            with self.lock:
                self.pending -= 1
            work.finish(error)
            del item, call, work, error
