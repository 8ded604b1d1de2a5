"""`Group`: the processes that exchange tensors through shared memory."""

from __future__ import annotations

import atexit
import ctypes
import os
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from opforge.errors import GroupError
from opforge.ops.host_op import host_op

from . import dtypes, failure
from .dtypes import OPERATION_CODES, OPERATIONS
from .rendezvous import Rendezvous

if TYPE_CHECKING:
    from torch import Tensor

TIMEOUT = 1800.0
MOST_TAGS = 1 << 64


class Group:
    """The ranks of one host. They make the same calls in the same order; tensors have any stride.

    A call returns when this rank's tensors may be used. `timeout` of a call, in seconds, replaces the group's. Tensors
    with gaps are copied to and from memory without. Threads may share a group, but their collective calls have no order
    then; messages between two ranks have one for each direction.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: float = TIMEOUT, *, op: Any = None) -> None:
        """Waits until all ranks have come.

        Args:
            store: A store of torch.distributed that all ranks reach, such as a PrefixStore or a FileStore.
            rank: This process's number, from 0.
            size: How many ranks there are.
            timeout: Seconds that this waits for another rank, here and in each call.
            op: The loaded op; by default it is loaded, and built first if necessary.

        Raises:
            ValueError: A number is out of its range.
            GroupError: A rank did not come, has ended, or is on another host.
        """
        op = op or host_op("ShareMemCommBuilder")
        if not 1 <= size <= op.shm_most_ranks():
            raise ValueError(f"size={size}: expected 1 to {op.shm_most_ranks()} ranks")
        if not 0 <= rank < size:
            raise ValueError(f"rank={rank}: expected 0 to {size - 1}")
        if not timeout > 0:
            raise ValueError(f"timeout={timeout}: expected more than 0 seconds")
        self.rank, self.size, self.timeout = rank, size, timeout
        self._op, self._pid = op, os.getpid()
        rendezvous = Rendezvous(op, store, rank, size, timeout)
        try:
            self._handle = rendezvous.attach()
        finally:
            rendezvous.close_descriptor()
        weakref.finalize(self, _delete, op, self._handle, self._pid).atexit = False
        _groups.add(self)
        rendezvous.forget()
        self.barrier()  # so that no rank makes a group with the same store while it still has this one's keys

    def all_reduce(self, tensor: Tensor, operation: str = "sum", timeout: float | None = None) -> None:
        """Replaces the tensor by the reduction of all ranks' tensors, the same bits on every rank.

        `operation` is "sum", "product", "min", "max" or "average"; for integers also "and", "or", "xor". Sums and
        products of 16-bit floats are computed in float32 and rounded once. Raises TypeError, ValueError, GroupError.
        """
        data = dtypes.memory(tensor)
        number = _part(data)
        kind, code = self._reduction(number, operation)
        self._call(self._op.shm_all_reduce, number.data_ptr(), number.numel(), kind, code, timeout=timeout)
        dtypes.finish(tensor, data)

    def reduce_scatter(
        self,
        output: Tensor,
        inputs: Tensor | Sequence[Tensor],
        operation: str = "sum",
        timeout: float | None = None,
    ) -> None:
        """Sets the output to the reduction of all ranks' `inputs[rank]`.

        `inputs` is a list with a tensor for each rank, or a tensor of as many times the output's elements. Raises
        TypeError, ValueError, GroupError.
        """
        parts = self._parts("inputs", inputs, output)
        memories = [dtypes.memory(part) for part in parts]
        data = dtypes.result(output)
        number = _part(data)
        kind, code = self._reduction(number, operation)
        pointers = self._pointers(memories)
        self._call(
            self._op.shm_reduce_scatter, pointers, number.data_ptr(), number.numel(), kind, code, timeout=timeout
        )
        dtypes.finish(output, data)

    def all_gather(self, outputs: Tensor | Sequence[Tensor], tensor: Tensor, timeout: float | None = None) -> None:
        """Sets `outputs[i]` to rank i's tensor, for all ranks.

        `outputs` is a list with a tensor for each rank, or a tensor of as many times the elements. Raises TypeError,
        ValueError, GroupError.
        """
        parts = self._parts("outputs", outputs, tensor)
        data = dtypes.memory(tensor)
        kind = dtypes.code(data)
        results = [dtypes.result(part) for part in parts]
        pointers = self._pointers(results)
        self._call(self._op.shm_all_gather, data.data_ptr(), pointers, data.nbytes, kind, timeout=timeout)
        self._finish(parts, results)

    def broadcast(self, tensor: Tensor, source: int, timeout: float | None = None) -> None:
        """Replaces the tensor by that of the rank `source`. Raises TypeError, ValueError, GroupError."""
        root = self._other("source", source)
        data = dtypes.memory(tensor) if root == self.rank else dtypes.result(tensor)
        kind = dtypes.code(data)
        self._call(self._op.shm_broadcast, data.data_ptr(), data.nbytes, kind, root, timeout=timeout)
        if root != self.rank:
            dtypes.finish(tensor, data)

    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], timeout: float | None = None) -> None:
        """Sets `outputs[i]` to `inputs[rank]` of rank i. Sizes may differ. Raises TypeError, ValueError, GroupError."""
        for name, tensors in (("outputs", outputs), ("inputs", inputs)):
            if len(tensors) != self.size:
                raise ValueError(f"{len(tensors)} {name}: expected {self.size}, one for each rank")
        memories = [dtypes.memory(tensor) for tensor in inputs]
        results = [dtypes.result(tensor) for tensor in outputs]
        kinds = {dtypes.code(data) for data in (*memories, *results)}
        if len(kinds) != 1:
            names = ", ".join(sorted(dtypes.NAMES[kind] for kind in kinds))
            raise ValueError(f"tensors of {names}: expected one dtype")
        sizes = [(ctypes.c_uint64 * self.size)(*(part.nbytes for part in parts)) for parts in (memories, results)]
        pointers = [self._pointers(memories), self._pointers(results)]
        arguments = (pointers[0], sizes[0], pointers[1], sizes[1], kinds.pop())
        self._call(self._op.shm_all_to_all, *arguments, timeout=timeout)
        self._finish(outputs, results)

    def send(self, tensor: Tensor, to: int, tag: int = 0, timeout: float | None = None) -> None:
        """Sends the tensor to a rank. Small ones are buffered. Raises TypeError, ValueError, GroupError."""
        data, peer = dtypes.memory(tensor), self._peer("to", to)
        kind = dtypes.code(data)
        self._call(self._op.shm_send, data.data_ptr(), data.nbytes, kind, peer, _tag(tag), timeout=timeout)

    def receive(self, tensor: Tensor, source: int | None = None, tag: int = 0, timeout: float | None = None) -> int:
        """Sets the tensor to the next message of a rank with this tag; of any rank if `source` is None.

        Returns the rank. A rank that has left the group matters only if it is the source, or if all have left. Raises
        TypeError, ValueError, GroupError.
        """
        data = dtypes.result(tensor)
        kind = dtypes.code(data)
        if source is None:
            if self.size == 1:
                raise ValueError("source=None in a group of one: there is no other rank")
            rank = ctypes.c_uint32()
            arguments = (data.data_ptr(), data.nbytes, kind, _tag(tag), ctypes.byref(rank))
            self._call(self._op.shm_receive_any, *arguments, timeout=timeout)
            source = rank.value
        else:
            peer = self._peer("source", source)
            self._call(self._op.shm_receive, data.data_ptr(), data.nbytes, kind, peer, _tag(tag), timeout=timeout)
        dtypes.finish(tensor, data)
        return source

    def barrier(self, timeout: float | None = None) -> None:
        """Waits until all ranks have called it. Raises GroupError."""
        self._call(self._op.shm_barrier, timeout=timeout)

    def close(self) -> None:
        """Leaves the group: calls under way in this process, and those of other ranks that need it, raise GroupError.

        It may be called again. The memory is freed when the last rank has left.
        """
        if self._pid == os.getpid():
            self._op.shm_close(self._handle)

    def _call(self, function: Callable[..., int], *arguments: Any, timeout: float | None) -> None:
        if os.getpid() != self._pid:
            problem = f"it belongs to process {self._pid}, of which this is a fork"
            raise GroupError(self.rank, self.size, "fork", None, problem, "Make a group in the process that uses it")
        seconds = self.timeout if timeout is None else timeout
        code = function(self._handle, *arguments, seconds)
        if not code:
            return
        if code == failure.FAILED:
            raise failure.error(self._op, self._handle, self.rank, self.size, seconds)
        if code == failure.CLOSED:
            raise GroupError(self.rank, self.size, "closed", self.rank, "it is closed", "Make a new group")
        raise OSError(code, os.strerror(code))

    def _reduction(self, tensor: Tensor, operation: str) -> tuple[int, int]:
        kind, code = dtypes.code(tensor), OPERATION_CODES.get(operation)
        if code is None:
            raise ValueError(f"operation={operation!r}: expected one of {', '.join(OPERATIONS)}")
        if not self._op.shm_reduces(kind, code):
            raise TypeError(f"{operation} of {tensor.dtype}: there is no such reduction")
        return kind, code

    def _parts(self, name: str, tensors: Tensor | Sequence[Tensor], part: Tensor) -> list[Tensor]:
        """Returns a tensor for each rank, with the elements of `part`. Raises TypeError, ValueError."""
        dtypes.check(part)
        if isinstance(tensors, torch.Tensor):
            dtypes.check(tensors)
            if tensors.numel() != self.size * part.numel():
                raise ValueError(
                    f"{name} of {tensors.numel()} elements: expected {self.size} times the {part.numel()} of a rank"
                )
            if not tensors.is_contiguous():
                if tensors.dim() == 0 or tensors.shape[0] % self.size:
                    raise ValueError(f"{name} of shape {tuple(tensors.shape)} has gaps and no row for each rank")
                parts = list(tensors.detach().chunk(self.size))
            else:
                parts = list(tensors.detach().view(self.size, part.numel()))
        else:
            parts = list(tensors)
            if len(parts) != self.size:
                raise ValueError(f"{len(parts)} {name}: expected {self.size}, one for each rank")
        for tensor in parts:
            dtypes.check(tensor)
            if tensor.numel() != part.numel() or tensor.dtype != part.dtype:
                raise ValueError(
                    f"{name} with a tensor of {tensor.numel()} {tensor.dtype}: expected {part.numel()} {part.dtype}"
                )
        return parts

    def _pointers(self, tensors: Sequence[Tensor]) -> Any:
        return (ctypes.c_void_p * self.size)(*(tensor.data_ptr() for tensor in tensors))

    def _finish(self, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        for tensor, data in zip(tensors, results, strict=True):
            dtypes.finish(tensor, data)

    def _other(self, name: str, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise ValueError(f"{name}={rank}: expected a rank from 0 to {self.size - 1}")
        return rank

    def _peer(self, name: str, rank: int) -> int:
        if rank == self.rank:
            raise ValueError(f"{name}={rank}: expected another rank than this one")
        return self._other(name, rank)


def _part(tensor: Tensor) -> Tensor:
    """Returns the tensor as numbers that can be reduced: a complex one as its real and imaginary parts."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _tag(tag: int) -> int:
    if not 0 <= tag < MOST_TAGS:
        raise ValueError(f"tag={tag}: expected 0 or more")
    return tag


def _delete(op: Any, handle: int, pid: int) -> None:
    if os.getpid() == pid:  # the memory says that the parent has left otherwise
        op.shm_close(handle)
    op.shm_delete(handle)


_groups: weakref.WeakSet[Group] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends the calls that threads have under way, before the interpreter does."""
    for group in list(_groups):
        group.close()
