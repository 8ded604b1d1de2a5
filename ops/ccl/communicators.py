"""The functions of `CCLCommBuilder`'s op: DeepSpeed's collectives over oneCCL.

What differs: an unknown dtype or group is an error, where DeepSpeed sends it as int8 or uses all ranks. A bool's sum is
its maximum. Tensors of any stride.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = (
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "bfloat16"),
)
"""In the order of `ccl_dtype` in ops/csrc/ccl/ccl.cpp."""
OPERATIONS = ("SUM", "PRODUCT", "MIN", "MAX")
"""In the order of `ccl_reduction`."""
OF_BOOLS = {"SUM": "MAX", "PRODUCT": "MIN"}
COLLECTIVES = ["broadcast", "all_reduce", "inference_all_reduce", "all_reduce_caching", "barrier"]
PROBLEM_BYTES = 1024


class Communicators:
    """The communicators of this process, by the ranks in them."""

    def __init__(self, op: Any) -> None:
        self._op = op
        self._rank = self._size = -1
        self._stores: dict[bool, ctypes.c_void_p] = {}
        """The stores that this process made and has not used yet: of the main communicator, or of a group."""
        self._by_ranks: dict[tuple[int, ...], ctypes.c_void_p] = {}

    def get_kvs_addr(self, rank: int) -> list[int]:
        """Returns the address of a new store on rank 0, and zeros on the others. Raises RuntimeError."""
        return self._address(rank == 0, is_main=True)

    def get_sub_kvs_addr(self, first: bool) -> list[int]:
        """Returns the address of a new store on a group's first rank, and zeros on the others. Raises RuntimeError."""
        return self._address(first, is_main=False)

    def initialize(self, size: int, rank: int, kvs_data: Tensor) -> None:
        """Connects all ranks. `kvs_data` has rank 0's address as uint8. Again, it does nothing. Raises RuntimeError."""
        if self._size < 0:
            self._connect(size, rank, kvs_data, range(size), is_main=True)
            self._size, self._rank = size, rank

    def initialize_sub_comm(self, size: int, rank: int, kvs_data: Tensor, ranks: Sequence[int]) -> None:
        """Connects the ranks of a group, in which this is number `rank`. Raises RuntimeError."""
        self._connect(size, rank, kvs_data, ranks, is_main=False)

    def get_rank(self, group: Any = 0) -> int:
        """Returns this process's rank among all, -1 before `initialize`."""
        return self._rank

    def get_world_size(self, group: Any = 0) -> int:
        """Returns the number of all ranks, -1 before `initialize`."""
        return self._size

    def get_available_coll(self) -> list[str]:
        """Returns the names of the collectives."""
        return [*COLLECTIVES]

    def broadcast(self, data: Tensor, src: int, group: Sequence[int], async_op: bool) -> None:
        """Replaces the tensor by that of the group's rank number `src`, and waits. Raises as `all_reduce` does."""
        self._run(
            data,
            lambda memory, dtype: self._call(
                self._op.ccl_broadcast, self._of(group), memory.data_ptr(), memory.numel(), dtype, src
            ),
        )

    def all_reduce(self, data: Tensor, op: Any, group: Sequence[int], async_op: bool) -> None:
        """Reduces the tensor in place, and waits.

        `op` is a ReduceOp of DeepSpeed or torch: SUM, PRODUCT, MIN, MAX. Raises TypeError for a dtype that oneCCL
        lacks, ValueError for another operation or an unknown group, and RuntimeError with oneCCL's reason.
        """
        self._reduce(data, op, group, None)

    def all_reduce_caching(self, data: Tensor, op: Any, match_id: str, group: Sequence[int], async_op: bool) -> None:
        """Reduces like `all_reduce`; oneCCL keeps the operation under `match_id`, which all ranks must agree on."""
        self._reduce(data, op, group, match_id.encode())

    def inference_all_reduce(self, data: Tensor, op: Any) -> None:
        """Reduces the tensor of all ranks in place. Raises as `all_reduce` does."""
        self._reduce(data, op, range(self._size), None)

    def barrier(self, group: Sequence[int], async_op: bool) -> None:
        """Waits until all ranks of the group have called it. Raises ValueError, RuntimeError."""
        self._call(self._op.ccl_barrier, self._of(group))

    def _reduce(self, data: Tensor, operation: Any, group: Sequence[int], name: bytes | None) -> None:
        kind = _operation(data, operation)
        number = self._op.ccl_reduction(OPERATIONS.index(kind))
        self._run(
            data,
            lambda memory, dtype: self._call(
                self._op.ccl_all_reduce, self._of(group), memory.data_ptr(), memory.numel(), dtype, number, name
            ),
        )

    def _run(self, data: Tensor, call: Callable[[Tensor, int], None]) -> None:
        import torch

        name = "uint8" if data.dtype is torch.bool else str(data.dtype).removeprefix("torch.")
        if name not in DTYPES:
            raise TypeError(f"a tensor of {data.dtype}: oneCCL has bool, {', '.join(DTYPES)}")
        is_memory = data.is_cpu and data.is_contiguous() and not data.is_neg()
        memory = data if is_memory else data.detach().resolve_neg().cpu().contiguous()
        call(memory, self._op.ccl_dtype(DTYPES.index(name)))
        if memory is not data:
            data.detach().copy_(memory)

    def _of(self, group: Sequence[int] | None) -> ctypes.c_void_p:
        ranks = tuple(range(self._size)) if group is None else tuple(group)
        try:
            return self._by_ranks[ranks]
        except KeyError:
            others = ", ".join(map(str, self._by_ranks)) or "none: call initialize first"
            raise ValueError(f"the ranks {ranks} have no communicator; there are {others}") from None

    def _address(self, is_first: bool, is_main: bool) -> list[int]:
        address = (ctypes.c_uint8 * self._op.ccl_address_bytes())()
        if is_first:
            store = ctypes.c_void_p()
            self._call(self._op.ccl_create_kvs, ctypes.byref(store), address)
            self._stores[is_main] = store
        return [*address]

    def _connect(self, size: int, rank: int, kvs_data: Tensor, ranks: Sequence[int], is_main: bool) -> None:
        store = self._stores.pop(is_main, None) if rank == 0 else None
        if store is None:
            values = kvs_data.cpu().tolist()
            expected = self._op.ccl_address_bytes()
            if len(values) != expected:
                raise ValueError(f"an address of {len(values)} bytes: expected the {expected} of get_kvs_addr")
            store, address = ctypes.c_void_p(), (ctypes.c_uint8 * expected)(*values)
            self._call(self._op.ccl_open_kvs, ctypes.byref(store), address)
        communicator = ctypes.c_void_p()
        self._call(self._op.ccl_connect, ctypes.byref(communicator), store, size, rank)
        self._by_ranks[tuple(ranks)] = communicator

    def _call(self, function: Callable[..., int], *arguments: Any) -> None:
        problem = ctypes.create_string_buffer(PROBLEM_BYTES)
        if function(*arguments, problem, len(problem)):
            raise RuntimeError(f"oneCCL: {problem.value.decode(errors='replace')}")


def _operation(data: Tensor, operation: Any) -> str:
    """Returns the name of a ReduceOp, for bools that of the operation which cannot overflow. Raises ValueError."""
    import torch

    name = getattr(operation, "name", None) or str(operation).rpartition(".")[2]
    if data.dtype is torch.bool:
        name = OF_BOOLS.get(name, name)
    if name not in OPERATIONS:
        raise ValueError(f"{operation}: expected ReduceOp.{', '.join(OPERATIONS)}")
    return name


def functions(op: Any) -> dict[str, Any]:
    """Returns the op's Python functions."""
    communicators = Communicators(op)
    names = [name for name in dir(Communicators) if not name.startswith("_")]
    return {name: getattr(communicators, name) for name in names}
