"""The backend "opforge_shm" of torch.distributed: its process group, over `Group`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import ProcessGroup, ReduceOp

from .group import Group
from .names import BACKEND
from .work import CallInGroup, Lane

if TYPE_CHECKING:
    from torch import Tensor

OPERATIONS = {
    ReduceOp.SUM: "sum",
    ReduceOp.PRODUCT: "product",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.AVG: "average",
    ReduceOp.BAND: "and",
    ReduceOp.BOR: "or",
    ReduceOp.BXOR: "xor",
}


Base: Any = ProcessGroup
"""torch's own types of the methods do not fit what it calls them with."""


class SharedMemoryGroup(Base):  # type: ignore[misc]
    """A process group of one host, for CPU tensors.

    torch calls its methods by two sets of names, those of torch 2.13 and older ones. Calls with `async_op=True` run in
    the order in which they were made, in a thread of the group; messages to and from each rank in one of their own.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        """Waits until all ranks have come. Raises what `Group` raises."""
        super().__init__(rank, size)
        self._names: dict[str, str] = {}
        self._group = Group(store, rank, size, timeout.total_seconds())
        self._collectives = Lane()
        self._messages: dict[tuple[str, int | None], Lane] = {}

    def getBackendName(self) -> str:
        """Returns "opforge_shm"."""
        return BACKEND

    def name(self) -> str:
        """Returns "opforge_shm"."""
        return BACKEND

    def setGroupName(self, name: str) -> None:
        """Sets the name that torch knows the group by."""
        self._names["name"] = name

    def getGroupName(self) -> str:
        """Returns the name that torch knows the group by."""
        return self._names.get("name", "")

    def setGroupDesc(self, text: str) -> None:
        """Sets the name of the group in torch's messages."""
        self._names["text"] = text

    def getGroupDesc(self) -> str:
        """Returns the name of the group in torch's messages."""
        return self._names.get("text", "undefined")

    def _get_backend(self, device: torch.device) -> Any:
        """Returns the group itself for the CPU: torch 2.14 asks for the backend of a batch of messages."""
        return self if device.type == "cpu" else super()._get_backend(device)

    def shutdown(self) -> None:
        """Leaves the group. Its threads end after the calls that they have."""
        self._group.close()
        self._collectives = Lane()
        self._messages.clear()

    abort = shutdown

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets how long a call waits for another rank."""
        self._group.timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def allreduce(self, tensors: Any, opts: Any = None, *_: Any, **__: Any) -> CallInGroup:
        """Reduces each tensor in place."""
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        name, seconds = _operation(opts), _seconds(opts)

        def call() -> None:
            for tensor in tensors:
                self._group.all_reduce(tensor, name, seconds)

        return self._collective(call, tensors, opts)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> CallInGroup:
        """Replaces each tensor by the root's."""

        def call() -> None:
            for tensor in tensors:
                self._group.broadcast(tensor, opts.rootRank, _seconds(opts))

        return self._collective(call, tensors, opts)

    def reduce(self, tensors: Sequence[Tensor], opts: Any) -> CallInGroup:
        """Reduces each tensor, in place on the root. The others' tensors stay."""
        name = _operation(opts)

        def call() -> None:
            for tensor in tensors:
                data = tensor if opts.rootRank == self._group.rank else tensor.detach().clone()
                self._group.all_reduce(data, name, _seconds(opts))

        return self._collective(call, tensors, opts)

    def allgather(self, outputs: Sequence[Any], inputs: Sequence[Tensor], opts: Any = None) -> CallInGroup:
        """Gathers each input on every rank: in a list of tensors, or in one tensor."""

        def call() -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                self._group.all_gather(output, tensor, _seconds(opts))

        return self._collective(call, outputs, opts)

    # outputs[i][j]: of rank i, its j-th tensor in older torch; the inputs' order in this one.
    allgather_coalesced = allgather
    all_gather_single_coalesced = allgather_into_tensor_coalesced = allgather

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> CallInGroup:
        """Gathers the tensors of all ranks in one."""
        return self.allgather([output], [tensor], opts)

    _allgather_base = all_gather_single

    def gather(self, output_lists: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any) -> CallInGroup:
        """Gathers each input on the root."""

        def call() -> None:
            for index, tensor in enumerate(inputs):
                is_root = opts.rootRank == self._group.rank
                empty = [tensor.new_empty(0)] * self._group.size
                sent = [tensor if rank == opts.rootRank else empty[0] for rank in range(self._group.size)]
                self._group.all_to_all(output_lists[index] if is_root else empty, sent, _seconds(opts))

        return self._collective(call, output_lists, opts)

    def scatter(self, outputs: Sequence[Tensor], input_lists: Sequence[Sequence[Tensor]], opts: Any) -> CallInGroup:
        """Sends a tensor of the root to each rank."""

        def call() -> None:
            for index, output in enumerate(outputs):
                empty = [output.new_empty(0)] * self._group.size
                received = [output if rank == opts.rootRank else empty[0] for rank in range(self._group.size)]
                sent = input_lists[index] if opts.rootRank == self._group.rank else empty
                self._group.all_to_all(received, sent, _seconds(opts))

        return self._collective(call, outputs, opts)

    def reduce_scatter(self, outputs: Sequence[Tensor], input_lists: Sequence[Any], opts: Any = None) -> CallInGroup:
        """Reduces a tensor for each rank."""
        name = _operation(opts)

        def call() -> None:
            for output, inputs in zip(outputs, input_lists, strict=True):
                self._group.reduce_scatter(output, inputs, name, _seconds(opts))

        return self._collective(call, outputs, opts)

    reduce_scatter_single_coalesced = reduce_scatter
    reduce_scatter_tensor_coalesced = reduce_scatter

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> CallInGroup:
        """Reduces the parts of a tensor, one for each rank."""
        return self.reduce_scatter([output], [tensor], opts)

    _reduce_scatter_base = reduce_scatter_single

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> CallInGroup:
        """Sends a tensor to each rank."""
        call = lambda: self._group.all_to_all(outputs, inputs, _seconds(opts))  # noqa: E731
        return self._collective(call, outputs, opts)

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any = None,
    ) -> CallInGroup:
        """Sends rows of a tensor to each rank: as many as the sizes say, or an equal part."""
        outputs, inputs = self._rows(output, output_sizes), self._rows(tensor, input_sizes)
        call = lambda: self._group.all_to_all(outputs, inputs, _seconds(opts))  # noqa: E731
        return self._collective(call, [output], opts)

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> CallInGroup:
        """Waits until all ranks have called it."""
        return self._collective(lambda: self._group.barrier(_seconds(opts)), [], opts)

    def send(self, tensors: Sequence[Tensor], rank: int, tag: int = 0) -> CallInGroup:
        """Sends each tensor to a rank."""

        def call() -> None:
            for tensor in tensors:
                self._group.send(tensor, rank, tag)

        return self._lane("send", rank).run(call, tensors, is_async=True)

    def recv(self, tensors: Sequence[Tensor], rank: int, tag: int = 0) -> CallInGroup:
        """Receives each tensor from a rank."""

        def call() -> None:
            for tensor in tensors:
                self._group.receive(tensor, rank, tag)

        return self._lane("receive", rank).run(call, tensors, is_async=True)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> CallInGroup:
        """Receives each tensor from any rank. The work has the last one's."""
        sources: list[int] = []

        def call() -> None:
            sources.extend(self._group.receive(tensor, None, tag) for tensor in tensors)

        work = self._lane("receive", None).run(call, tensors, is_async=True)
        work.sources = sources
        return work

    def _lane(self, direction: str, rank: int | None) -> Lane:
        return self._messages.setdefault((direction, rank), Lane())

    def _collective(self, call: Callable[[], None], value: Any, opts: Any) -> CallInGroup:
        is_async = getattr(opts, "asyncOp", True)
        return self._collectives.run(call, value, is_async)

    def _rows(self, tensor: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        size = self._group.size
        if not sizes:
            if tensor.shape[0] % size:
                raise ValueError(f"a tensor of {tensor.shape[0]} rows for {size} ranks: pass the sizes of the parts")
            sizes = [tensor.shape[0] // size] * size
        if len(sizes) != size or sum(sizes) != tensor.shape[0]:
            raise ValueError(
                f"parts of {list(sizes)} rows: expected {size}, in all the {tensor.shape[0]} of the tensor"
            )
        return [*torch.split(tensor.detach(), list(sizes))]


def _operation(opts: Any) -> str:
    operation = getattr(opts, "reduceOp", ReduceOp.SUM)
    for kind, name in OPERATIONS.items():
        if operation == kind:
            return name
    raise ValueError(f"{operation}: {BACKEND} has {', '.join(OPERATIONS.values())}")


def _seconds(opts: Any) -> float | None:
    """Returns the timeout of the call's options, None if they have none: then it is the group's."""
    timeout = getattr(opts, "timeout", None)
    seconds = timeout.total_seconds() if timeout is not None else 0.0
    return seconds if seconds > 0 else None
