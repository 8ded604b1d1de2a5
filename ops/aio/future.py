"""The future of reads and writes, and the errors that it raises."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import time
from collections.abc import Generator, Sequence
from concurrent.futures import CancelledError
from typing import Any, Protocol

SLICE = 0.2  # seconds of one wait in the op: between two, Python handles signals such as Ctrl-C


class Requests(Protocol):
    """The queue that a request was submitted to."""

    op: Any

    def wait(self, request: int, seconds: float) -> bool:
        """Returns whether the request has finished within this time."""

    def cancel(self, request: int) -> None:
        """Drops the blocks of the request that are not under way."""


class Transfer:
    """One request of the op, and the tensor that it moves, which it keeps until then."""

    def __init__(self, queue: Requests, request: int, path: Any, verb: str, tensor: Any, end: int) -> None:
        self._queue, self._request = queue, request
        self._path, self._verb, self._end = path, verb, end
        self.tensor = tensor

    def __del__(self) -> None:
        self._queue.op.aio_release(self._request)

    def wait(self, deadline: float | None) -> bool:
        """Returns whether it has finished by `deadline`, a time of `time.monotonic`; None waits without end."""
        while True:
            left = SLICE if deadline is None else min(SLICE, max(0.0, deadline - time.monotonic()))
            if self._queue.wait(self._request, left):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def cancel(self) -> None:
        """Drops the blocks that are not under way."""
        self._queue.cancel(self._request)

    def error(self) -> BaseException | None:
        """Returns the error of a finished request."""
        offset, file_bytes = ctypes.c_int64(), ctypes.c_int64()
        number = self._queue.op.aio_outcome(self._request, ctypes.byref(offset), ctypes.byref(file_bytes))
        if not number:
            return None
        if number == errno.ECANCELED:
            return CancelledError(f"{self._verb} of {self._path!r} was cancelled")
        at = "" if offset.value < 0 else f" at byte {offset.value}"
        return OSError(number, f"{self._verb}{at}: {self._text(number, file_bytes.value, offset.value)}", self._path)

    def _text(self, number: int, file_bytes: int, offset: int) -> str:
        if number == errno.ENODATA:
            if offset >= 0:
                return "the file ends here: it became shorter while it was read"
            return f"the file has {file_bytes} bytes, and bytes up to {self._end} were requested"
        if number == errno.ESPIPE:
            return "not a regular file or a block device: a FIFO, a socket or a terminal has no offsets"
        if number == errno.EFBIG:
            return "the file would be larger than this process (ulimit -f) or the file system allows"
        if number == errno.ENOSPC:
            return f"{os.strerror(number)}: free some, or write elsewhere"
        if number == errno.EINVAL and isinstance(self._path, int):
            return "the descriptor appends (O_APPEND), or has O_DIRECT and cannot be opened without it: open it anew"
        if number == errno.ENOENT and self._verb == "write":
            return f"{os.strerror(number)}: create the folder first"
        if number == errno.EACCES:
            return f"{os.strerror(number)}: this user may not {self._verb} it, or not enter a folder of its path"
        if number == errno.EISDIR:
            return f"{os.strerror(number)}: expected a file"
        return os.strerror(number)


class Future:
    """The pending result of `read` or `write`: wait for it with `result()`, or `await` it.

    A future stays valid if no code waits for it: the tensors are kept until they are no longer in use.
    """

    def __init__(self, transfers: Sequence[Transfer], value: Any) -> None:
        self._transfers, self._value = transfers, value

    def done(self) -> bool:
        """Returns whether it has finished, failed or been cancelled."""
        return all(transfer.wait(0) for transfer in self._transfers)

    def result(self, timeout: float | None = None) -> Any:
        """Waits, and returns the tensor, or the tensors of a list.

        Raises:
            OSError: With the error number and the path; of several files, the first that failed.
            TimeoutError: It has not finished within `timeout` seconds. It goes on.
            concurrent.futures.CancelledError: It was cancelled.
        """
        if error := self.exception(timeout):
            raise error
        return self._value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits, and returns the exception of `result`. Raises TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for transfer in self._transfers:
            if not transfer.wait(deadline):
                raise TimeoutError(f"not finished within {timeout} seconds")
        errors = [error for transfer in self._transfers if (error := transfer.error())]
        return next((error for error in errors if isinstance(error, OSError)), errors[0] if errors else None)

    def cancel(self) -> bool:
        """Drops the requests that have not begun. Returns whether the future had not finished.

        Requests under way end first, and `done()` is false until then. A cancelled read leaves the tensor's contents
        undefined, and a cancelled write the file's.
        """
        pending = not self.done()
        for transfer in self._transfers:
            transfer.cancel()
        return pending

    def cancelled(self) -> bool:
        """Returns whether it was cancelled before it finished."""
        return self.done() and isinstance(self.exception(), CancelledError)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._awaited().__await__()

    async def _awaited(self) -> Any:
        loop = asyncio.get_running_loop()
        try:
            if not self.done():
                await loop.run_in_executor(None, self.exception)
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self.result()
