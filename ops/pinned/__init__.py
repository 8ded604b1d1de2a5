"""Tensors in locked memory, which is never swapped out. All ops of a process share one account of it.

The memory is page-aligned, and belongs to the tensor's storage: it is unlocked and freed with the last view. Some of
it is kept, not locked, for the next tensor of the same size: the kernel takes longer to map pages than to lock them.
"""

from __future__ import annotations

import itertools
import mmap
import os
import resource
import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor, dtype


class LockedMemory(NamedTuple):
    """Locked memory of a tensor's storage."""

    number: int
    """Never used again, as the address is: it tells this memory from what is there later."""
    address: int
    size: int


class User(Protocol):
    """A function that may register locked memory with the kernel."""

    def forget(self, number: int) -> None:
        """Lets go of memory, which is freed next."""


NOT_LOCKED = LockedMemory(0, 0, 0)
_numbers = itertools.count(1)
_locked: dict[int, LockedMemory] = {}
"""The locked blocks, by address."""
_users: weakref.WeakSet[User] = weakref.WeakSet()
_kept: dict[int, list[mmap.mmap]] = {}
"""Memory that no tensor uses, which is not locked, by its size."""
_lock = threading.RLock()  # a finalizer may run within a thread that holds it
HUGE_PAGE = 2 << 20
MOST_KEPT = 4 << 20
"""Bytes that are kept at most, in blocks of at most a quarter of them."""


def _forget() -> None:
    """Empties the account in a forked child, which inherits the memory, but not its locks."""
    global _lock, _users
    _lock = threading.RLock()
    _users = weakref.WeakSet()
    _locked.clear()
    _kept.clear()


os.register_at_fork(after_in_child=_forget)


def new(op: Any, elements: int, kind: dtype) -> Tensor:
    """Returns a one-dimensional tensor of zeros in locked memory.

    `op` has `pin_lock` and `pin_unlock`. Raises ValueError for a negative number of elements, and OSError if the memory
    cannot be had or locked: the text then has the limit, the memory in use, and how to raise it.
    """
    import torch

    if elements < 0:
        raise ValueError(f"{elements} elements of locked memory: expected 0 or more")
    size = -(-max(1, elements * kind.itemsize) // mmap.PAGESIZE) * mmap.PAGESIZE
    with _lock:
        blocks = _kept.get(size)
        memory = blocks.pop() if blocks else None
        number = next(_numbers)  # under the lock: two threads must not get the same
    is_new = memory is None
    if memory is None:
        memory = _mapped(size)
    view = memoryview(memory)  # the storage holds it, so that its end is the end of the last tensor
    tensor = torch.frombuffer(view, dtype=kind, count=max(1, elements))
    address = tensor.data_ptr()
    locked = LockedMemory(number, address, size)
    weakref.finalize(view, _ended, op, locked, memory).atexit = False
    if not is_new:
        tensor.zero_()
    if error := op.pin_lock(address, size):
        op.pin_unlock(address, size)  # a part of it may be locked
        raise OSError(error, f"{size} bytes of memory cannot be locked: {_limit(error)}")
    with _lock:
        _locked[address] = locked
    return tensor if elements else tensor[:0]


def _mapped(size: int) -> mmap.mmap:
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        number = getattr(error, "errno", None) or 12
        raise OSError(number, f"{size} bytes of locked memory: {os.strerror(number)}") from error
    if size >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # a kernel without huge pages
    return memory


def free(op: Any, address: int) -> bool:
    """Unlocks the memory that begins at `address`. Returns False if none of the account does.

    The memory itself is freed with its last view.
    """
    with _lock:
        memory = _locked.pop(address, None)
    if memory is None:
        return False
    op.pin_unlock(address, memory.size)
    return True


def memory_of(tensor: Tensor) -> LockedMemory:
    """Returns the memory of the account that a CPU tensor is a part of, or `NOT_LOCKED`."""
    return _locked.get(tensor.untyped_storage().data_ptr(), NOT_LOCKED)


def add_user(user: User) -> None:
    """Has `user.forget` called for all memory, before it is freed. It is kept by a weak reference."""
    with _lock:
        _users.add(user)


def is_pinned(tensor: Tensor) -> bool:
    """Returns whether all of a tensor's memory is locked, by this account or by torch."""
    if tensor.device.type != "cpu":
        return False
    begin = tensor.data_ptr()
    end = begin + tensor.nbytes
    with _lock:
        if any(address <= begin and end <= address + size for _, address, size in _locked.values()):
            return True
    return tensor.is_pinned()


def locked_bytes() -> int:
    """Returns how many bytes this account has locked."""
    with _lock:
        return sum(memory.size for memory in _locked.values())


def _ended(op: Any, locked: LockedMemory, memory: mmap.mmap) -> None:
    """Unlocks memory that no tensor has any more, and keeps it if it is small."""
    free(op, locked.address)
    size = len(memory)
    with _lock:
        users = list(_users)
    for user in users:
        user.forget(locked.number)
    with _lock:
        kept = sum(size * len(blocks) for size, blocks in _kept.items())
        if size <= MOST_KEPT // 4 and kept + size <= MOST_KEPT:
            _kept.setdefault(size, []).append(memory)


def _limit(number: int) -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return f"{os.strerror(number)}. No limit is set (RLIMIT_MEMLOCK): the machine's memory is exhausted"
    limits = f"{soft} bytes" + ("" if hard == soft else f" (at most {_bytes(hard)} for `ulimit -l`)")
    return (
        f"this process may lock {limits}, and {_in_use()} are locked, {locked_bytes()} of them by opforge. "
        "Raise the limit (RLIMIT_MEMLOCK): `ulimit -l`, memlock in /etc/security/limits.conf, LimitMEMLOCK= of a "
        "systemd unit, or `docker run --ulimit memlock=-1`"
    )


def _bytes(limit: int) -> str:
    return "without limit" if limit == resource.RLIM_INFINITY else f"{limit} bytes"


def _in_use() -> str:
    """Returns the memory that the kernel counts as locked by this process."""
    with open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"VmLck:"):
                return f"{int(line.split()[1]) * 1024} bytes"
    return "an unknown number of bytes"


class PinHandle:
    """Allocates tensors in locked memory; DeepSpeed's `pin_handle`."""

    _op: Any

    def new_cpu_locked_tensor(self, num_elem: int, example_tensor: Tensor) -> Tensor:
        """Returns a tensor of `num_elem` zeros of the example's dtype, in locked memory. Raises OSError, ValueError."""
        return new(self._op, num_elem, example_tensor.dtype)

    def free_cpu_locked_tensor(self, locked_tensor: Tensor) -> bool:
        """Unlocks a tensor's memory; it is freed with its last view. Returns False if it is not the account's."""
        return free(self._op, locked_tensor.data_ptr())

    def free_cpu_locked_tensor_by_ptr(self, address: int) -> bool:
        """Unlocks the memory that begins at `address`. Returns False if it is not the account's."""
        return free(self._op, address)

    def is_pinned(self, buffer: Tensor) -> bool:
        """Returns whether all of the buffer's memory is locked, through any handle or by torch."""
        return is_pinned(buffer)


def functions(op: Any) -> dict[str, Any]:
    """Returns the op's Python functions."""
    return {"pin_handle": type("pin_handle", (PinHandle,), {"_op": op})}
