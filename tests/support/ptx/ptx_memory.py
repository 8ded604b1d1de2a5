"""The memory of the PTX interpreter: the tensors of this process, and shared memory that detects races."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

WARP = 32


class MachineError(Exception):
    """A kernel did what a GPU does not allow, or what PTX leaves undefined."""


class Memory:
    """Global memory: the allocations that a kernel may access, as (address, bytes)."""

    def __init__(self, allocations: Sequence[tuple[int, int]]) -> None:
        nonempty = sorted({allocation for allocation in allocations if allocation[1]})
        self.starts = np.array([start for start, _size in nonempty], np.uint64)
        self.ends = np.array([start + size for start, size in nonempty], np.uint64)
        self.bytes = [np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start)) for start, size in nonempty]
        self._writers: dict[int, Any] = {}
        self.traffic: dict[str, dict[int, int]] = {"read": {}, "written": {}}
        """The bytes that warps read and wrote, by the address of the allocation."""

    def begin_launch(self) -> None:
        """Forgets which threads wrote: launches are ordered, so only threads of one launch can race."""
        self._writers.clear()

    def load(self, addresses: Any, size: int, access: str, threads: Any) -> Any:
        """Returns [threads, size] bytes at the addresses. Raises MachineError."""
        data = np.zeros((len(addresses), size), np.uint8)
        for lanes, offsets, number in self._locate(addresses, size, access):
            self._count("read", number, offsets, size, threads[lanes])
            columns = offsets[:, None] + np.arange(size)
            if number in self._writers:
                writers = self._writers[number][columns]
                if ((writers >= 0) & (writers != threads[lanes][:, None])).any():
                    raise MachineError("a race: another thread of this launch wrote this memory")
            data[lanes] = self.bytes[number][columns]
        return data

    def store(self, addresses: Any, data: Any, threads: Any) -> None:
        """Writes [threads, size] bytes to the addresses. Raises MachineError."""
        size = data.shape[1]
        for lanes, offsets, number in self._locate(addresses, size, "st"):
            self._count("written", number, offsets, size, threads[lanes])
            columns, new = offsets[:, None] + np.arange(size), data[lanes]
            memory, writers = self.bytes[number], self._writers_of(number)
            others = (writers[columns] >= 0) & (writers[columns] != threads[lanes][:, None])
            if (others & (memory[columns] != new)).any():
                raise MachineError("a race: another thread of this launch wrote another value here")
            memory[columns] = new
            if (memory[columns] != new).any():
                raise MachineError("two threads write different values to the same place")
            writers[columns] = threads[lanes][:, None]

    def _count(self, direction: str, number: int, offsets: Any, size: int, threads: Any) -> None:
        """Adds up the bytes of an instruction: what several threads of a warp access is moved once."""
        words = np.unique(threads.astype(np.int64) // WARP * len(self.bytes[number]) + offsets)
        counts, start = self.traffic[direction], int(self.starts[number])
        counts[start] = counts.get(start, 0) + len(words) * size

    def _locate(self, addresses: Any, size: int, access: str) -> list[tuple[Any, Any, int]]:
        """Returns, for each allocation: which addresses are in it, their offsets, and its number."""
        if (addresses % size).any():
            raise MachineError(f"unaligned: {access} at {addresses[addresses % size != 0][0]:#x}")
        number = np.searchsorted(self.starts, addresses, "right").astype(int) - 1
        outside = (number < 0) | (addresses + np.uint64(size) > self.ends[number])
        if outside.any():
            raise MachineError(
                f"outside of every tensor: {access} at {addresses[outside][0]:#x} by {outside.sum()} threads"
            )
        located = []
        for allocation in np.unique(number):
            lanes = number == allocation
            located.append((lanes, (addresses[lanes] - self.starts[allocation]).astype(int), int(allocation)))
        return located

    def _writers_of(self, number: int) -> Any:
        """Returns, for each byte of an allocation, the thread of this launch that wrote it; -1 for none."""
        if number not in self._writers:
            self._writers[number] = np.full(len(self.bytes[number]), -1, np.int64)
        return self._writers[number]


class Copy(NamedTuple):
    """What some threads copy by one instruction: [threads] addresses, whether it runs, and its group."""

    addresses: Any
    data: Any
    mask: Any
    group: Any


class SharedMemory:
    """The shared memory of some blocks: `size` bytes for each block.

    `block` and `warp` number each thread's block and its warp within the block. An epoch is the time between two
    barriers of a block: within one, a warp must not access what another warp wrote. What an asynchronous copy writes
    must not be accessed before the copy's thread has waited for it; that thread writes it at that time.
    """

    SEVERAL_WARPS = -2

    def __init__(self, blocks: int, size: int, block: Any, warp: Any) -> None:
        self._bytes = np.full((blocks, size), 0xFF, np.uint8)
        self._block, self._warp = block, warp
        self._epoch = np.zeros(blocks, np.int64)
        # For each byte: the epoch in which it was last written or accessed, and by which warp.
        self._wrote, self._accessed = (np.full((2, blocks, size), -1, np.int64) for _ in range(2))
        self._unfinished = np.zeros((blocks, size), bool)
        self._copies: list[Copy] = []
        self._groups = np.zeros(len(block), np.int64)  # that each thread has committed

    def barrier(self, mask: Any) -> None:
        """Begins a new epoch for the blocks of the active threads."""
        self._epoch[np.unique(self._block[mask])] += 1

    def copy(self, addresses: Any, data: Any, mask: Any) -> None:
        """Begins to write [threads, size] bytes of the active threads, in the group that each commits next."""
        block, columns, warp, epoch = self._locate(addresses, data.shape[1], mask)
        changed = self._bytes[block, columns] != data[mask]
        if (changed & (self._accessed[0, block, columns] == epoch) & (self._accessed[1, block, columns] != warp)).any():
            raise MachineError("a race: another warp touched this shared memory, with no barrier since")
        self._unfinished[block, columns] = True
        self._copies.append(Copy(addresses.copy(), data, mask.copy(), self._groups.copy()))

    def commit(self, mask: Any) -> None:
        """Ends the group of copies of each active thread."""
        self._groups[mask] += 1

    def wait(self, mask: Any, running: int) -> None:
        """Finishes the copies of the active threads, except for those of their last `running` groups."""
        for copy in self._copies:
            finished = copy.mask & mask & (copy.group < self._groups - running)
            if finished.any():
                copy.mask[finished] = False
                columns = copy.addresses[finished][:, None] + np.arange(copy.data.shape[1])
                self._unfinished[self._block[finished][:, None], columns] = False
                self.store(copy.addresses, copy.data, finished)
        self._copies = [copy for copy in self._copies if copy.mask.any()]

    def load(self, addresses: Any, size: int, mask: Any) -> Any:
        """Returns [threads, size] bytes; 0 for inactive threads. Raises MachineError."""
        block, columns, warp, epoch = self._locate(addresses, size, mask)
        if ((self._wrote[0, block, columns] == epoch) & (self._wrote[1, block, columns] != warp)).any():
            raise MachineError("a race: another warp wrote this shared memory, with no barrier since")
        self._log(self._accessed, block, columns, warp, epoch)
        data = np.zeros((len(mask), size), np.uint8)
        data[mask] = self._bytes[block, columns]
        return data

    def store(self, addresses: Any, data: Any, mask: Any) -> None:
        """Writes [threads, size] bytes of the active threads. Raises MachineError."""
        new = data[mask]
        block, columns, warp, epoch = self._locate(addresses, new.shape[1], mask)
        changed = self._bytes[block, columns] != new
        for log in (self._wrote, self._accessed):
            if (changed & (log[0, block, columns] == epoch) & (log[1, block, columns] != warp)).any():
                raise MachineError("a race: another warp touched this shared memory, with no barrier since")
        self._bytes[block, columns] = new
        if (self._bytes[block, columns] != new).any():
            raise MachineError("two threads write different values to the same shared memory")
        self._log(self._wrote, block, columns, warp, epoch)

    def _locate(self, addresses: Any, size: int, mask: Any) -> tuple[Any, Any, Any, Any]:
        """Returns block, bytes, warp and epoch of the active threads, in shapes that can be combined."""
        active = addresses[mask]
        if (active < 0).any() or (active + size > self._bytes.shape[1]).any():
            raise MachineError(f"outside of the {self._bytes.shape[1]} bytes of shared memory")
        if (active % size).any():
            raise MachineError("unaligned in shared memory")
        block, columns = self._block[mask][:, None], active[:, None] + np.arange(size)
        if self._unfinished[block, columns].any():
            raise MachineError("an asynchronous copy that writes this shared memory is unfinished")
        return block, columns, self._warp[mask][:, None], self._epoch[block]

    def _log(self, log: Any, block: Any, columns: Any, warp: Any, epoch: Any) -> None:
        """Records which warp accesses these bytes in this epoch, or that several warps do."""
        other = (log[0, block, columns] == epoch) & (log[1, block, columns] != warp)
        log[0, block, columns] = np.broadcast_to(epoch, columns.shape)
        log[1, block, columns] = np.where(other, self.SEVERAL_WARPS, warp)
        overwritten = log[1, block, columns] != warp  # of several threads in one instruction, the last one won
        log[1, np.broadcast_to(block, columns.shape)[overwritten], columns[overwritten]] = self.SEVERAL_WARPS
