"""DeepSpeed's surface of asynchronous files, over `Queue`.

What differs: a failure raises OSError, where DeepSpeed returns -1 or ends the process. A size needs to divide by
nothing. `single_submit` and `overlap_events` change no result and are only returned.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from opforge.ops import pinned

from .queue import File, Queue

if TYPE_CHECKING:
    from torch import Tensor

    from .future import Transfer

DIRECT_ALIGNMENT = 512
CHECKED_AT_ONCE = 16 << 20


class AioHandle:
    """Reads and writes tensors; DeepSpeed's `aio_handle`. All threads may use it.

    Tensors of a device go through the CPU. The names of arguments are DeepSpeed's.
    """

    _op: Any

    def __init__(
        self,
        block_size: int = 1024 * 1024,
        queue_depth: int = 128,
        single_submit: bool = False,
        overlap_events: bool = False,
        intra_op_parallelism: int = 1,
    ) -> None:
        """Starts `intra_op_parallelism` threads that each have up to `queue_depth` blocks under way.

        Raises ValueError for a number out of its range, and OSError if no engine works here.
        """
        self._queue = Queue(block_size=block_size, depth=queue_depth, workers=intra_op_parallelism, op=self._op)
        self._single_submit, self._overlap_events = single_submit, overlap_events
        self._pending: list[_Call] = []
        self._lock = threading.Lock()

    def get_block_size(self) -> int:
        """Returns the bytes of one transfer."""
        return self._queue.block_size

    def get_queue_depth(self) -> int:
        """Returns how many blocks a thread has under way at most."""
        return self._queue.depth

    def get_single_submit(self) -> bool:
        """Returns the value of `single_submit` that the handle was created with."""
        return self._single_submit

    def get_overlap_events(self) -> bool:
        """Returns the value of `overlap_events` that the handle was created with."""
        return self._overlap_events

    def get_intra_op_parallelism(self) -> int:
        """Returns the number of threads."""
        return self._queue.workers

    def get_alignment(self) -> int:
        """Returns the bytes to which callers round buffers up, as DeepSpeed computes them. Others work too."""
        return self._queue.workers * DIRECT_ALIGNMENT

    def read(self, buffer: Tensor, filename: File, validate: bool, file_offset: int = 0) -> int:
        """Reads the buffer, and waits. Returns 0. Raises OSError."""
        self._call(False, buffer, filename, file_offset, validate, frozen=False).finish()
        return 0

    def write(self, buffer: Tensor, filename: File, validate: bool, file_offset: int = 0) -> int:
        """Writes the buffer, and waits. Returns 0. Raises OSError."""
        self._call(True, buffer, filename, file_offset, validate, frozen=False).finish()
        return 0

    def pread(self, buffer: Tensor, filename: File, validate: bool, *args: Any, **others: Any) -> int:
        """Reads the buffer. The arguments are buffer, filename, validate, async and file_offset=0.

        Returns 0 if `async` is true, else what `wait` returns. Raises OSError.
        """
        return self._parallel(False, buffer, filename, validate, *_async_and_offset("pread", *args, **others))

    def pwrite(self, buffer: Tensor, filename: File, validate: bool, *args: Any, **others: Any) -> int:
        """Writes the buffer. The arguments are buffer, filename, validate, async and file_offset=0.

        Returns 0 if `async` is true, else what `wait` returns. Raises OSError.
        """
        return self._parallel(True, buffer, filename, validate, *_async_and_offset("pwrite", *args, **others))

    def sync_pread(self, buffer: Tensor, filename: File, file_offset: int = 0) -> int:
        """Reads the buffer, and waits for all pending requests. Returns the result of `wait`. Raises OSError."""
        return self._parallel(False, buffer, filename, False, False, file_offset)

    def sync_pwrite(self, buffer: Tensor, filename: File, file_offset: int = 0) -> int:
        """Writes the buffer, and waits for all pending requests. Returns the result of `wait`. Raises OSError."""
        return self._parallel(True, buffer, filename, False, False, file_offset)

    def async_pread(
        self, buffer: Tensor, filename: File | None = None, file_offset: int = 0, *, fd: int | None = None
    ) -> int:
        """Starts to read the buffer. Returns 0; `wait` raises errors."""
        return self._parallel(False, buffer, _file("async_pread", filename, fd), False, True, file_offset)

    def async_pwrite(
        self, buffer: Tensor, filename: File | None = None, file_offset: int = 0, *, fd: int | None = None
    ) -> int:
        """Starts to write the buffer, which must not change until `wait`. Returns 0; `wait` raises errors."""
        return self._parallel(True, buffer, _file("async_pwrite", filename, fd), False, True, file_offset)

    def wait(self) -> int:
        """Waits for all that is pending. Returns how many calls that were, 0 without any.

        Raises OSError for the first that failed, after all have finished.
        """
        with self._lock:
            calls, self._pending = self._pending, []
        errors = []
        for call in calls:
            try:
                call.finish()
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return len(calls)

    def new_cpu_locked_tensor(self, num_elem: int, example_tenosr: Tensor) -> Tensor:
        """Returns a tensor of `num_elem` zeros of the example's dtype, in locked memory. Raises OSError, ValueError."""
        return pinned.new(self._op, num_elem, example_tenosr.dtype)

    def free_cpu_locked_tensor(self, tensor: Tensor) -> bool:
        """Unlocks a tensor's memory; it is freed with its last view. Returns False if it is not the account's."""
        return pinned.free(self._op, tensor.data_ptr())

    def is_pinned(self, buffer: Tensor) -> bool:
        """Returns whether all of the buffer's memory is locked, through any handle or by torch."""
        return pinned.is_pinned(buffer)

    def registered(self) -> tuple[int, str]:
        """Returns how many bytes of locked memory are registered, and why not more; see `Queue.registered`."""
        return self._queue.registered()

    def _parallel(
        self, write: bool, buffer: Tensor, file: File, validate: bool, is_async: bool, file_offset: int
    ) -> int:
        call = self._call(write, buffer, file, file_offset, validate, frozen=is_async)
        with self._lock:
            self._pending.append(call)
        return 0 if is_async else self.wait()

    def _call(self, write: bool, buffer: Tensor, file: File, offset: int, validate: bool, frozen: bool) -> _Call:
        memory = buffer
        if not getattr(buffer, "is_cpu", True):  # what is no tensor is refused by the queue
            memory = buffer.cpu() if write else buffer.new_empty(buffer.shape, device="cpu")
            memory = memory.contiguous()
        transfer = self._queue.submit(write, file, memory, offset, freeze=frozen)
        return _Call(transfer, buffer, file, offset, write, validate)


class _Call:
    """A call whose end is waited for."""

    def __init__(
        self, transfer: Transfer, buffer: Tensor, file: File, offset: int, write: bool, validate: bool
    ) -> None:
        self._transfer, self._buffer, self._file = transfer, buffer, file
        self._offset, self._write, self._validate = offset, write, validate

    def finish(self) -> None:
        self._transfer.wait(None)
        if error := self._transfer.error():
            raise error
        memory = self._transfer.tensor
        if self._validate:
            _validate(memory, self._file, self._offset)
        if memory is not self._buffer and not self._write:
            self._buffer.copy_(memory)


def _validate(memory: Tensor, file: File, offset: int) -> None:
    """Reads the file again, through the page cache. Raises OSError if it has other bytes."""
    import errno

    import torch

    content = memory.detach().reshape(-1).view(torch.uint8)
    path = f"/proc/self/fd/{file}" if isinstance(file, int) else file
    with open(path, "rb", buffering=0) as opened:
        opened.seek(offset)
        for begin in range(0, content.numel(), CHECKED_AT_ONCE):
            part = content[begin : begin + CHECKED_AT_ONCE]
            again = bytearray(part.numel())
            count = opened.readinto(again) or 0
            if count != len(again) or not torch.equal(torch.frombuffer(again, dtype=torch.uint8), part):
                problem = f"the file and the tensor differ in the {len(again)} bytes from {offset + begin}"
                raise OSError(errno.EIO, f"{problem}: something else wrote to one of them", file)


def _async_and_offset(function: str, *args: Any, **others: Any) -> tuple[bool, int]:
    """Returns the arguments `async` and `file_offset`: the first one's name is a word of Python."""

    def names(is_async: bool, file_offset: int = 0) -> tuple[bool, int]:
        return is_async, file_offset

    if "async" in others:
        others["is_async"] = others.pop("async")
    try:
        return names(*args, **others)
    except TypeError as error:
        usage = f"expected {function}(buffer, filename, validate, async, file_offset=0)"
        raise TypeError(f"{function}: {usage}") from error


def _file(function: str, filename: File | None, fd: int | None) -> File:
    file = filename if fd is None else fd
    if file is None or (filename is not None and fd is not None):
        raise TypeError(f"{function}: expected either filename or fd")
    return file


def aio_read(
    op: Any,
    buffer: Tensor,
    filename: File,
    block_size: int,
    queue_depth: int,
    single_submit: bool,
    overlap_events: bool,
    validate: bool,
) -> int:
    """Reads the buffer from the file's beginning. Returns 0. Raises OSError, ValueError."""
    handle = _handle(op, block_size, queue_depth, single_submit, overlap_events)
    return handle.read(buffer, filename, validate)


def aio_write(
    op: Any,
    buffer: Tensor,
    filename: File,
    block_size: int,
    queue_depth: int,
    single_submit: bool,
    overlap_events: bool,
    validate: bool,
) -> int:
    """Writes the buffer to the file's beginning. Returns 0. Raises OSError, ValueError."""
    handle = _handle(op, block_size, queue_depth, single_submit, overlap_events)
    return handle.write(buffer, filename, validate)


def deepspeed_memcpy(dest: Tensor, src: Tensor) -> int:
    """Copies a tensor of the CPU into another one of the same shape and dtype. Returns 0. Raises ValueError."""
    if dest.shape != src.shape or dest.dtype != src.dtype:
        raise ValueError(
            f"deepspeed_memcpy: {src.dtype} of shape {tuple(src.shape)} into {dest.dtype} of shape {tuple(dest.shape)}"
            ": expected the same"
        )
    dest.copy_(src)
    return 0


def _handle(op: Any, *options: Any) -> AioHandle:
    kind: type[AioHandle] = type("aio_handle", (AioHandle,), {"_op": op})
    return kind(*options)


def functions(op: Any) -> dict[str, Any]:
    """Returns the op's Python functions."""
    return {
        "aio_handle": type("aio_handle", (AioHandle,), {"_op": op}),
        "aio_read": partial(aio_read, op),
        "aio_write": partial(aio_write, op),
        "deepspeed_memcpy": deepspeed_memcpy,
    }
