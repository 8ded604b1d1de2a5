"""Queues of reads and writes, and the functions that use the process's own."""

from __future__ import annotations

import atexit
import ctypes
import errno
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Union

from opforge.foundation.fork_lock import ForkLock
from opforge.ops import pinned
from opforge.ops.host_op import host_op

from . import tensors
from .future import Future, Transfer

if TYPE_CHECKING:
    from torch import Tensor

File = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]", int]
ENGINES = ("io_uring", "libaio", "threads")
"""In the order in which they are tried."""
SWEEP = 256
DEEPEST = 4096


class Queue:
    """Reads and writes tensors in the order of the calls, `depth` blocks at once. All threads may use it.

    A write to a file that exists replaces only the bytes of the tensor. Two requests for the same bytes at once have no
    order. Requests that were not finished when the process ends: writes are finished, reads are dropped.
    """

    def __init__(
        self,
        engine: str = "",
        *,
        block_size: int = 1 << 20,
        depth: int = 128,
        workers: int = 1,
        direct: bool = True,
        op: Any = None,
    ) -> None:
        """Starts the threads.

        Args:
            engine: "io_uring", "libaio" or "threads"; by default the first that works here. See `report`.
            block_size: Bytes of one transfer; it is rounded up to whole pages.
            depth: How many blocks a worker has under way.
            workers: Threads that submit and collect. One saturates most disks.
            direct: Whether to use O_DIRECT, where the file system has it.
            op: The loaded op; by default it is loaded, and built first if necessary.

        Raises:
            ValueError: An option is out of its range, or the engine is unknown.
            OSError: The engine, or each of them, cannot be used here; the text has the reasons.
        """
        self.op = op or host_op("AsyncIOBuilder")
        self.block_size, self.depth, self.workers = block_size, depth, workers
        for name, value, limit in (
            ("block_size", block_size, 1 << 30),
            ("depth", depth, DEEPEST),
            ("workers", workers, 64),
        ):
            if not isinstance(value, int) or not 1 <= value <= limit:
                raise ValueError(f"{name}={value!r}: expected a whole number from 1 to {limit}")
        if engine and engine not in ENGINES:
            raise ValueError(f"engine={engine!r}: expected one of {', '.join(ENGINES)}, or '' for the first that works")
        self._block = -(-block_size // 4096) * 4096
        self._pid, self._closed = os.getpid(), False
        self._lock = threading.RLock()
        self._pending: dict[int, Tensor] = {}  # without the transfers, which would keep the queue
        reasons = []
        for self.engine in [engine] if engine else ENGINES:
            self._queue, reason = _start(self.op, self.engine, self._block, depth, workers, direct)
            if self._queue:
                break
            reasons.append(f"{self.engine}: {reason}")
        else:
            raise OSError("no engine for asynchronous files works here: " + "; ".join(reasons))
        # It holds the tensors until the threads have ended.
        weakref.finalize(self, _delete, self.op, self._queue, self._pid, self._pending).atexit = False
        _queues.add(self)
        pinned.add_user(self)

    def read(self, path: Any, tensor: Any, offset: Any = 0) -> Future:
        """Reads a tensor's bytes from a file, beginning at `offset`. Returns a future at once.

        Args:
            path: A path or a descriptor; or a list of them, with as many tensors.
            tensor: A contiguous CPU tensor, or a list.
            offset: Bytes from the file's beginning; for a list, one number for all or as many as files. An int64 tensor
                of one dimension has an offset for each row of `tensor`: rows from anywhere, in one request.

        Returns:
            A future of the tensor or the list. Until it is done, the tensor cannot be freed. Its storage can no longer
            be resized, as after `Tensor.numpy()`.

        Raises:
            TypeError, ValueError: An argument does not fit the description above.
            RuntimeError: The queue is closed, or was created before a fork.
        """
        return self._request(False, path, tensor, offset)

    def write(self, path: Any, tensor: Any, offset: Any = 0) -> Future:
        """Writes a tensor's bytes to a file, beginning at `offset`; creates it if it is missing. Returns a future.

        See `read` for the arguments. The tensor must not be changed until the future is done. The system may still hold
        the data in a cache: use os.fsync for data that must outlive a power failure. A write that fails may leave a
        file of the full length.
        """
        return self._request(True, path, tensor, offset)

    def close(self) -> None:
        """Finishes the writes, drops the reads and ends the threads. Later calls raise RuntimeError."""
        self._check_process()
        with self._lock:
            self._closed = True
        self.op.aio_stop(self._queue)
        self._sweep()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def registered(self) -> tuple[int, str]:
        """Returns how many bytes of memory are registered, and why the kernel last refused to, "" if it did not.

        Memory of `new_cpu_locked_tensor` is registered with io_uring once as many bytes as it has were read or written,
        until its last view is gone: the kernel then pins it once, and not for each block. Reads and writes of
        refused memory work nevertheless.
        """
        self._check_process()
        error = ctypes.c_int()
        return self.op.aio_registered(self._queue, ctypes.byref(error)), _refusal(error.value)

    def forget(self, number: int) -> None:
        """Lets go of locked memory, which is freed next; see `opforge.ops.pinned`."""
        self.op.aio_forget(self._queue, number)

    def wait(self, request: int, seconds: float) -> bool:
        """Returns whether a request of this queue has finished within the time. Raises RuntimeError after a fork."""
        self._check_process()
        return bool(self.op.aio_wait(self._queue, request, seconds))

    def cancel(self, request: int) -> None:
        """Drops the blocks of a request that are not under way. Raises RuntimeError after a fork."""
        self._check_process()
        self.op.aio_cancel(self._queue, request)

    def submit(self, write: bool, path: File, tensor: Tensor, offset: Any, freeze: bool = True) -> Transfer:
        """Starts one request. With `freeze`, the storage cannot be resized from now on."""
        import torch

        self._check_process()
        if self._closed:
            raise RuntimeError("the queue is closed: create another one")
        tensors.check(torch, tensor)
        offsets, end, row_bytes = tensors.offsets(torch, tensor, offset)
        name = b"" if isinstance(path, int) else os.path.abspath(os.fsencode(path))
        if b"\0" in name:
            raise ValueError(f"the path {path!r} has a null character")
        if not write and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)
        if freeze:
            tensors.freeze(torch, tensor)
        error, memory = ctypes.c_int(), pinned.memory_of(tensor)
        with self._lock:
            self._sweep()
            request = self.op.aio_submit(
                self._queue,
                write,
                name,
                path if isinstance(path, int) else -1,
                tensor.data_ptr(),
                row_bytes,
                offsets.numel(),
                offsets.data_ptr(),
                self._block,
                *memory,
                ctypes.byref(error),
            )
            if not request:
                raise OSError(error.value, os.strerror(error.value), path)
            shown = path if isinstance(path, int) else os.fspath(path)
            transfer = Transfer(self, request, shown, "write" if write else "read", tensor, end)
            self._pending[request] = tensor
        return transfer

    def _request(self, write: bool, path: Any, tensor: Any, offset: Any) -> Future:
        if not isinstance(path, (list, tuple)):
            return Future([self.submit(write, path, tensor, offset)], tensor)
        if len(tensor) != len(path):
            raise ValueError(f"{len(path)} paths and {len(tensor)} tensors: expected as many of both")
        offsets = [offset] * len(path) if isinstance(offset, int) else offset
        if len(offsets) != len(path):
            raise ValueError(f"{len(path)} paths and {len(offsets)} offsets: expected as many, or one number for all")
        transfers: list[Transfer] = []
        try:
            for parts in zip(path, tensor, offsets, strict=True):
                transfers += [self.submit(write, *parts)]
        except BaseException:
            for transfer in transfers:
                transfer.cancel()
            raise
        return Future(transfers, tensor)

    def _sweep(self) -> None:
        """Forgets the requests that have finished, and with them the tensors."""
        requests = (ctypes.c_void_p * SWEEP)()
        with self._lock:
            while count := self.op.aio_finished(self._queue, requests, SWEEP):
                for request in requests[:count]:
                    self._pending.pop(request or 0, None)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"the queue was created in process {self._pid}, before a fork: create one in this process"
            )


def _start(op: Any, engine: str, block: int, depth: int, workers: int, direct: bool) -> tuple[int, str]:
    """Returns the queue of an engine, or 0 and why it cannot be used."""
    problem = ctypes.create_string_buffer(512)
    queue = op.aio_start(engine.encode(), block, depth, workers, direct, problem, len(problem))
    return queue or 0, problem.value.decode(errors="replace")


def _refusal(number: int) -> str:
    if number == errno.ENOSYS:
        return "this kernel cannot register more memory later (Linux 5.13)"
    if number == errno.ENOMEM:
        return "the limit of locked memory, which the user's processes share: raise it (`ulimit -l`)"
    return os.strerror(number) if number else ""


def _delete(op: Any, queue: int, pid: int, pending: dict[int, Tensor]) -> None:
    if os.getpid() == pid:  # the threads of a forked child's parent are not the child's to end
        op.aio_stop(queue)
        op.aio_delete(queue)
    pending.clear()


_queues: weakref.WeakSet[Queue] = weakref.WeakSet()
_default: tuple[int, Queue] | None = None
_default_lock = ForkLock()


def default() -> Queue:
    """Returns the queue that `read` and `write` use, a new one after a fork."""
    global _default
    with _default_lock:
        if _default is None or _default[0] != os.getpid():
            _default = os.getpid(), Queue()
        return _default[1]


def read(path: Any, tensor: Any, offset: Any = 0) -> Future:
    """Reads a tensor from a file; see `Queue.read`."""
    return default().read(path, tensor, offset)


def write(path: Any, tensor: Any, offset: Any = 0) -> Future:
    """Writes a tensor to a file; see `Queue.write`."""
    return default().write(path, tensor, offset)


def report() -> dict[str, str]:
    """Returns each engine with the reason why it cannot be used here, "" if it can."""
    op, reasons = host_op("AsyncIOBuilder"), {}
    for engine in ENGINES:
        queue, reasons[engine] = _start(op, engine, 4096, 1, 1, True)
        if queue:
            op.aio_delete(queue)
    return reasons


@atexit.register
def _stop_all() -> None:
    """Ends the threads before the interpreter frees the tensors."""
    for queue in list(_queues):
        if not queue._closed and queue._pid == os.getpid():
            queue.close()
