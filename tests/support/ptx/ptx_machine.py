"""Executes the PTX that Triton makes, in numpy, on memory of this process: what a kernel means, without a GPU.

All threads of many blocks are lanes of one array, and go on in step where they stand at the same place. Caught:
accesses outside the allocations it is told of, unaligned ones, shared memory that one warp writes and another touches
with no barrier between, two threads that write different values to one place or read what another wrote, barriers and
shuffles that not all threads reach.

For sm_80 and sm_90: from sm_100 on there is arithmetic on pairs, which it does not know.

Not modelled: what ptxas makes of the PTX (it may fuse `mul` and `add`), the last bits of the approximate functions, of
`fma` (computed in float64, then rounded) and of shuffles other than butterflies; blocks that wait for each other;
caches, timing, streams.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from support.ptx.ptx_arithmetic import ARITHMETIC, COMPARISONS, TYPES, constant, flushed, narrow
from support.ptx.ptx_program import Instruction, Kernel, names

WARP = 32
LANES = 1 << 14
"""At most so many threads are executed together, whole blocks of them."""


class MachineError(Exception):
    """What a kernel did that a GPU punishes, or does not say."""


class Memory:
    """The allocations that a kernel may touch: (address, bytes) of each."""

    def __init__(self, allocations: Sequence[tuple[int, int]]) -> None:
        known = sorted({one for one in allocations if one[1]})
        self.starts = np.array([start for start, _size in known], np.uint64)
        self.ends = np.array([start + size for start, size in known], np.uint64)
        self.bytes = [np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start)) for start, size in known]
        self.writers: dict[int, Any] = {}

    def places(self, addresses: Any, size: int, what: str) -> list[tuple[Any, Any, int]]:
        """Of addresses in one allocation each: which, where in it, and its number. Raises MachineError."""
        if (addresses % size).any():
            raise MachineError(f"unaligned: {what} at {addresses[addresses % size != 0][0]:#x}")
        number = np.searchsorted(self.starts, addresses, "right").astype(int) - 1
        beyond = (number < 0) | (addresses + np.uint64(size) > self.ends[number])
        if beyond.any():
            raise MachineError(
                f"outside of every tensor: {what} at {addresses[beyond][0]:#x} by {beyond.sum()} threads"
            )
        found = []
        for one in np.unique(number):
            which = number == one
            found.append((which, (addresses[which] - self.starts[one]).astype(int), int(one)))
        return found

    def writer(self, number: int) -> Any:
        """Of each byte of an allocation, the thread of this launch that wrote it; -1 for none."""
        if number not in self.writers:
            self.writers[number] = np.full(len(self.bytes[number]), -1, np.int64)
        return self.writers[number]


class Launch:
    """Some blocks of one launch: `blocks` are their places in the grid."""

    def __init__(
        self, kernel: Kernel, memory: Memory, values: Sequence[int], grid: Any, blocks: Any, shared: int
    ) -> None:
        self.kernel, self.memory, self.values = kernel, memory, values
        self.count = len(blocks) * kernel.threads
        self.block = np.repeat(np.arange(len(blocks)), kernel.threads)
        thread = np.tile(np.arange(kernel.threads, dtype=np.uint32), len(blocks))
        self.warp = thread // WARP
        self.identity = np.repeat(np.asarray(blocks), kernel.threads) * kernel.threads + thread
        at = np.repeat(np.stack(np.unravel_index(np.asarray(blocks), tuple(grid[::-1])))[::-1], kernel.threads, 1)
        self.special = {"%tid.x": thread, "%ntid.x": np.full_like(thread, kernel.threads)}
        for axis, letter in enumerate("xyz"):
            self.special[f"%ctaid.{letter}"] = at[axis].astype(np.uint32)
            self.special[f"%nctaid.{letter}"] = np.full(self.count, grid[axis], np.uint32)
        self.registers = {name: np.zeros(self.count, dtype) for name, dtype in kernel.registers.items()}
        self.shared = np.full((len(blocks), shared), 0xFF, np.uint8)
        self.epoch = np.zeros(len(blocks), np.int64)
        self.wrote, self.touched = (np.full((2, len(blocks), shared), -1, np.int64) for _ in range(2))
        self.mask = np.ones(self.count, bool)

    def run(self) -> None:
        """Until every thread has returned. Raises MachineError."""
        kernel, end = self.kernel, len(self.kernel.code)
        where = np.zeros(self.count, np.int64)
        with np.errstate(all="ignore"):
            while (place := int(where.min())) < end:
                here = where == place
                while True:
                    one = kernel.code[place]
                    self.mask = here
                    if one.guard is not None:
                        value = self.registers[one.guard[0]]
                        self.mask = here & (~value if one.guard[1] else value)
                    place += 1
                    if one.op[0] in ("bra", "ret"):
                        where[here] = place
                        where[self.mask] = end if one.op[0] == "ret" else kernel.labels[one.operands[-1]]
                        break
                    try:
                        self.step(one)
                    except MachineError as error:
                        raise MachineError(f"{kernel.name}: {error} ({one.text})") from None
                    if place in kernel.leaders:
                        where[here] = place
                        break

    def step(self, one: Instruction) -> None:
        """Execute what is neither a branch nor a return."""
        name = one.op[0]
        special: Callable[[Instruction], None] | None = getattr(self, f"_{name}", None)
        if special:
            special(one)
            return
        compute = ARITHMETIC.get(name)
        if compute is None:
            raise MachineError("an instruction that this machine does not know")
        kind = one.op[-1]
        flush = "ftz" in one.op
        kinds = [
            kind,
            kind,
            f"{kind[0]}{2 * int(kind[1:])}" if "wide" in one.op else kind,
        ]  # mad.wide adds what is wide
        values = [self.read(operand, each) for operand, each in zip(one.operands[1:], kinds, strict=False)]
        result = compute(one.op, *([flushed(value) for value in values] if flush else values))
        self.write(one.operands[0], flushed(result) if flush else result)

    def read(self, operand: str, kind: str) -> Any:
        """A register, a special one, a constant, or the address of shared memory, as values of this type."""
        dtype = TYPES.get(kind, TYPES["u32"])
        if operand in self.special:
            return self.special[operand]
        found = self.registers.get(operand)
        if found is None:
            return constant(operand, dtype)
        return found.view(dtype)[:: found.itemsize // dtype.itemsize]  # of a wider one, the low part

    def write(self, operand: str, value: Any) -> None:
        """To a register, where the mask is set; a narrower value is extended as its type says."""
        if operand == "_":
            return
        to = self.registers[operand]
        value = np.asarray(value)
        if value.dtype.itemsize != to.dtype.itemsize and value.dtype.kind != "b":
            value = value.astype(to.dtype if value.dtype.kind == "u" else f"i{to.dtype.itemsize}")
        if value.dtype != to.dtype:
            value = value.view(to.dtype)
        np.copyto(to, value, where=self.mask)

    def _mov(self, one: Instruction) -> None:
        to, source = one.operands
        if source.startswith("{"):
            parts = [self.read(name, "b16" if one.op[1] == "b32" else "b32") for name in names(source)]
            width = 8 * parts[0].dtype.itemsize
            dtype = TYPES[one.op[1]]
            low, high = (np.asarray(part).astype(dtype) for part in parts)
            self.write(to, low | high << dtype.type(width))
        elif to.startswith("{"):
            value, half = self.read(source, one.op[1]), TYPES["b16" if one.op[1] == "b32" else "b32"]
            for number, name in enumerate(names(to)):
                part = value >> value.dtype.type(8 * half.itemsize * number)
                self.write(name, part.astype(half))
        else:
            self.write(to, np.zeros((), np.uint32) if source == "global_smem" else self.read(source, one.op[1]))

    def _setp(self, one: Instruction) -> None:
        first, second = (self.read(operand, one.op[-1]) for operand in one.operands[1:])
        self.write(one.operands[0], COMPARISONS[one.op[1]](first, second))

    def _selp(self, one: Instruction) -> None:
        first, second = (self.read(operand, one.op[1]) for operand in one.operands[1:3])
        self.write(one.operands[0], np.where(self.registers[one.operands[3]], first, second))

    def _cvt(self, one: Instruction) -> None:
        to, source = one.op[-2:]
        if to in ("bf16x2", "f16x2"):
            high, low = (narrow(self.read(operand, source), to[:-2]) for operand in one.operands[1:])
            self.write(one.operands[0], low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16))
            return
        value = self.read(one.operands[1], "b16" if source == "bf16" else source)
        if source == "bf16":
            value = (value.astype(np.uint32) << np.uint32(16)).view(np.float32)
        if to in ("bf16", "f16"):
            value = narrow(value, to)
        elif to[0] in "su" and value.dtype.kind == "f":
            assert "rzi" in one.op
            limits = np.iinfo(TYPES[to])
            whole = np.trunc(np.where(np.isnan(value), 0, value).astype(np.float64))
            value = np.where(whole >= limits.max, limits.max, np.clip(whole, limits.min, limits.max - 1))
        self.write(one.operands[0], np.asarray(value).astype(TYPES["b16" if to in ("bf16", "f16") else to]))

    def _bar(self, one: Instruction) -> None:
        self._together(self.kernel.threads, "a barrier")
        self.epoch[np.unique(self.block[self.mask])] += 1

    def _shfl(self, one: Instruction) -> None:
        assert one.op[:3] == ("shfl", "sync", "bfly") and one.operands[3:] == ("31", "-1"), one.text
        self._together(WARP, "a shuffle")
        lanes = np.arange(WARP) ^ int(one.operands[2])
        self.write(one.operands[0], self.read(one.operands[1], "b32").reshape(-1, WARP)[:, lanes].reshape(-1))

    def _together(self, size: int, what: str) -> None:
        groups = self.mask.reshape(-1, size)
        if (groups.any(1) != groups.all(1)).any():
            raise MachineError(f"{what} that only some of its {size} threads reach")

    def _createpolicy(self, one: Instruction) -> None:
        self.write(one.operands[0], np.zeros((), np.uint64))

    def _ldmatrix(self, one: Instruction) -> None:
        for at, name in self._matrices(one, one.operands[1], one.operands[0]):
            self.write(name, self._load_shared(at, 4, 1)[:, 0])

    def _stmatrix(self, one: Instruction) -> None:
        for at, name in self._matrices(one, one.operands[0], one.operands[1]):
            self._store_shared(at, self.registers[name][:, None])

    def _matrices(self, one: Instruction, address: str, registers: str) -> list[tuple[Any, str]]:
        """Of each matrix of 8 x 8: where each thread's two values of it lie, and their register."""
        self._together(WARP, one.op[0])
        assert one.op[1:4] == ("sync", "aligned", "m8n8") and one.op[5:] == ("shared", "b16"), one.text
        rows, lane = self._address(address).reshape(-1, WARP), np.arange(WARP)
        found = []
        for number, name in enumerate(names(registers)):
            found.append(((rows[:, number * 8 + lane // 4] + lane % 4 * 4).reshape(-1), name))
        return found

    def _ld(self, one: Instruction) -> None:
        registers = names(one.operands[0])
        dtype = TYPES[one.op[-1]]
        if one.op[1] == "param":
            found = re.fullmatch(r"\[\w+_param_(\d+)\]", one.operands[1])
            assert found, one.text
            raw = np.array(self.values[int(found[1])], np.uint64).reshape(1).view(dtype)[0]
            self.write(registers[0], raw)
            return
        at = self._address(one.operands[1])
        if one.op[1] == "shared":
            values = self._load_shared(at, dtype.itemsize, len(registers))
        else:
            values = self._load_global(at, dtype.itemsize, len(registers), one)
        for number, name in enumerate(registers):
            self.write(name, values[:, number].view(dtype))

    def _st(self, one: Instruction) -> None:
        at, dtype = self._address(one.operands[0]), TYPES[one.op[-1]]
        parts = [self.read(name, one.op[-1]) for name in names(one.operands[1])]
        values = np.stack([np.broadcast_to(part, at.shape).view(f"u{dtype.itemsize}") for part in parts], 1)
        (self._store_shared if one.op[1] == "shared" else self._store_global)(at, values)

    def _address(self, operand: str) -> Any:
        base, _, offset = operand.strip("[] ").replace(" ", "").partition("+")
        start = np.zeros(self.count, np.int64) if base == "global_smem" else self.registers[base].astype(np.int64)
        return start + int(offset or 0)

    def _bytes(self, at: Any, size: int) -> tuple[Any, Any]:
        """Of the lanes at work: their blocks, and the bytes that they touch in shared memory."""
        at = at[self.mask]
        if (at < 0).any() or (at + size > self.shared.shape[1]).any():
            raise MachineError(f"outside of the {self.shared.shape[1]} bytes of shared memory")
        if (at % size).any():
            raise MachineError("unaligned in shared memory")
        return self.block[self.mask][:, None], at[:, None] + np.arange(size)

    def _touch(self, block: Any, where: Any, log: Any) -> None:
        """Note which warp touches these bytes; two warps since the last barrier count as one more, of no number."""
        epoch, warp = self.epoch[block], self.warp[self.mask][:, None]
        other = (log[0, block, where] == epoch) & (log[1, block, where] != warp)
        log[0, block, where], log[1, block, where] = np.broadcast_to(epoch, where.shape), np.where(other, -2, warp)
        differ = log[1, block, where] != warp  # of lanes in one instruction the last one won
        log[1, np.broadcast_to(block, where.shape)[differ], where[differ]] = -2

    def _load_shared(self, at: Any, size: int, count: int) -> Any:
        block, where = self._bytes(at, size * count)
        warp = self.warp[self.mask][:, None]
        if ((self.wrote[0, block, where] == self.epoch[block]) & (self.wrote[1, block, where] != warp)).any():
            raise MachineError("a race: another warp wrote this shared memory, with no barrier since")
        self._touch(block, where, self.touched)
        values = np.zeros((self.count, size * count), np.uint8)
        values[self.mask] = self.shared[block, where]
        return values.view(f"u{size}")

    def _store_shared(self, at: Any, values: Any) -> None:
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(self.count, -1)[self.mask]
        block, where = self._bytes(at, raw.shape[1])
        warp, epoch = self.warp[self.mask][:, None], self.epoch[block]
        changed = self.shared[block, where] != raw
        for log in (self.wrote, self.touched):
            if (changed & (log[0, block, where] == epoch) & (log[1, block, where] != warp)).any():
                raise MachineError("a race: another warp touched this shared memory, with no barrier since")
        self.shared[block, where] = raw
        if (self.shared[block, where] != raw).any():
            raise MachineError("two threads write different values to the same shared memory")
        self._touch(block, where, self.wrote)

    def _load_global(self, at: Any, size: int, count: int, one: Instruction) -> Any:
        values = np.zeros((self.count, count), f"u{size}")
        lanes = np.flatnonzero(self.mask)
        for which, where, number in self.memory.places(at[lanes].astype(np.uint64), size * count, one.op[0]):
            columns = where[:, None] + np.arange(size * count)
            raw = self.memory.bytes[number][columns]
            if number in self.memory.writers:
                wrote = self.memory.writers[number][columns]
                if ((wrote >= 0) & (wrote != self.identity[lanes[which]][:, None])).any():
                    raise MachineError("a race: another thread of this launch wrote this memory")
            values[lanes[which]] = raw.view(f"u{size}")
        return values

    def _store_global(self, at: Any, values: Any) -> None:
        size = values.itemsize * values.shape[1]
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(self.count, -1)
        lanes = np.flatnonzero(self.mask)
        for which, where, number in self.memory.places(at[lanes].astype(np.uint64), size, "st"):
            columns, new = where[:, None] + np.arange(size), raw[lanes[which]]
            memory, writer = self.memory.bytes[number], self.memory.writer(number)
            if ((writer[columns] >= 0) & (memory[columns] != new)).any():
                others = writer[columns] != self.identity[lanes[which]][:, None]
                if ((writer[columns] >= 0) & others & (memory[columns] != new)).any():
                    raise MachineError("a race: another thread of this launch wrote another value here")
            memory[columns] = new
            if (memory[columns] != new).any():
                raise MachineError("two threads write different values to the same place")
            writer[columns] = self.identity[lanes[which]][:, None]


def run(kernel: Kernel, memory: Memory, values: Sequence[int], grid: Sequence[int], shared: int) -> None:
    """Launch a kernel: `values` are its parameters' bits. Raises MachineError."""
    memory.writers.clear()
    blocks = np.arange(int(np.prod(grid)))
    together = max(1, LANES // kernel.threads)
    for first in range(0, len(blocks), together):
        Launch(kernel, memory, values, grid, blocks[first : first + together], shared).run()
