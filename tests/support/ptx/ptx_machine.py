"""Executes the PTX that Triton writes, in numpy, on memory of this process: what a kernel computes, without a GPU.

The threads of many blocks are the elements of one array; those at the same instruction execute it together. Detected
are: accesses outside of the allocations, unaligned accesses, shared memory that one warp writes and another accesses
without a barrier in between, shared memory that is accessed before the asynchronous copy that writes it was waited for,
two threads that write different values to one place or read what the other wrote, and barriers, shuffles and products
that not all threads reach.

Works for sm_80, and for sm_90 without products of matrices (wgmma). From sm_100 on Triton uses arithmetic on pairs,
which is not implemented.

Not modelled: what ptxas does to the PTX (it may fuse `mul` and `add`); the last bits of approximate functions, of
`fma` and of products of matrices (computed in float64, then rounded); when a copy reads its source; shuffles within a
part of a warp; blocks that wait for each other; caches, timing and streams.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from support.ptx.ptx_arithmetic import ARITHMETIC, COMPARISONS, TYPES, constant, flushed, narrow, widened
from support.ptx.ptx_memory import WARP, MachineError, Memory, SharedMemory
from support.ptx.ptx_program import Instruction, Kernel, names

THREADS_TOGETHER = 1 << 14
"""At most so many threads are executed together, but at least one block."""


class Launch:
    """Some blocks of one launch; `blocks` are their indices in the grid."""

    def __init__(
        self, kernel: Kernel, memory: Memory, values: Sequence[int], grid: Any, blocks: Any, shared: int
    ) -> None:
        self.kernel, self.memory, self.values = kernel, memory, values
        self.count = len(blocks) * kernel.threads
        self.block = np.repeat(np.arange(len(blocks)), kernel.threads)
        thread = np.tile(np.arange(kernel.threads, dtype=np.uint32), len(blocks))
        self.thread_ids = np.repeat(np.asarray(blocks), kernel.threads) * kernel.threads + thread
        position = np.repeat(np.stack(np.unravel_index(np.asarray(blocks), tuple(grid[::-1])))[::-1], kernel.threads, 1)
        self.special = {"%tid.x": thread, "%ntid.x": np.full_like(thread, kernel.threads)}
        for axis, letter in enumerate("xyz"):
            self.special[f"%ctaid.{letter}"] = position[axis].astype(np.uint32)
            self.special[f"%nctaid.{letter}"] = np.full(self.count, grid[axis], np.uint32)
        self.registers = {name: np.zeros(self.count, dtype) for name, dtype in kernel.registers.items()}
        self.shared = SharedMemory(len(blocks), shared, self.block, thread // WARP)
        self.mask = np.ones(self.count, bool)

    def run(self) -> None:
        """Executes instructions until every thread has returned. Raises MachineError."""
        kernel, end = self.kernel, len(self.kernel.code)
        counters = np.zeros(self.count, np.int64)
        with np.errstate(all="ignore"):
            while (counter := int(counters.min())) < end:
                here = counters == counter
                while True:
                    instruction = kernel.code[counter]
                    self.mask = here
                    if instruction.guard is not None:
                        name, negated = instruction.guard
                        value = self.registers[name]
                        self.mask = here & (~value if negated else value)
                    counter += 1
                    if instruction.op[0] in ("bra", "ret"):
                        counters[here] = counter
                        target = end if instruction.op[0] == "ret" else kernel.labels[instruction.operands[-1]]
                        counters[self.mask] = target
                        break
                    try:
                        self.step(instruction)
                    except MachineError as error:
                        raise MachineError(f"{kernel.name}: {error} ({instruction.text})") from None
                    if counter in kernel.leaders:
                        counters[here] = counter
                        break

    def step(self, instruction: Instruction) -> None:
        """Executes an instruction that is neither a branch nor a return."""
        name = instruction.op[0]
        special: Callable[[Instruction], None] | None = getattr(self, f"_{name}", None)
        if special:
            special(instruction)
            return
        compute = ARITHMETIC.get(name)
        if compute is None:
            raise MachineError("an instruction that this machine does not know")
        kind = instruction.op[-1]
        if kind in ("bf16", "bf16x2"):
            words = [self.read(operand, "b16" if kind == "bf16" else "b32") for operand in instruction.operands[1:]]
            halves = narrow(compute(instruction.op, *(widened(word, "bf16") for word in words)), "bf16")
            both = halves[..., 0] if kind == "bf16" else halves[..., 0] | halves[..., 1].astype(np.uint32) << 16
            self.write(instruction.operands[0], both)
            return
        if kind not in TYPES:
            raise MachineError("an instruction that this machine does not know")
        flush = "ftz" in instruction.op
        # mad.wide adds a third operand that is twice as wide.
        kinds = [kind, kind, f"{kind[0]}{2 * int(kind[1:])}" if "wide" in instruction.op else kind]
        values = [self.read(operand, its) for operand, its in zip(instruction.operands[1:], kinds, strict=False)]
        result = compute(instruction.op, *([flushed(value) for value in values] if flush else values))
        self.write(instruction.operands[0], flushed(result) if flush else result)

    def read(self, operand: str, kind: str) -> Any:
        """Returns the values of a register, a special register or a constant, as this type."""
        dtype = TYPES.get(kind, TYPES["u32"])
        if operand in self.special:
            return self.special[operand]
        register = self.registers.get(operand)
        if register is None:
            return constant(operand, dtype)
        return register.view(dtype)[:: register.itemsize // dtype.itemsize]  # of a wider register, the low part

    def write(self, operand: str, value: Any) -> None:
        """Writes to a register where the mask is set. A narrower value is extended as its type says."""
        if operand == "_":
            return
        register = self.registers[operand]
        value = np.asarray(value)
        if value.dtype.itemsize != register.dtype.itemsize and value.dtype.kind != "b":
            value = value.astype(register.dtype if value.dtype.kind == "u" else f"i{register.dtype.itemsize}")
        if value.dtype != register.dtype:
            value = value.view(register.dtype)
        np.copyto(register, value, where=self.mask)

    def _mov(self, instruction: Instruction) -> None:
        target, source = instruction.operands
        if source.startswith("{"):
            half = "b16" if instruction.op[1] == "b32" else "b32"
            parts = [self.read(name, half) for name in names(source)]
            width = 8 * parts[0].dtype.itemsize
            dtype = TYPES[instruction.op[1]]
            low, high = (np.asarray(part).astype(dtype) for part in parts)
            self.write(target, low | high << dtype.type(width))
        elif target.startswith("{"):
            value, half_type = (
                self.read(source, instruction.op[1]),
                TYPES["b16" if instruction.op[1] == "b32" else "b32"],
            )
            for number, name in enumerate(names(target)):
                part = value >> value.dtype.type(8 * half_type.itemsize * number)
                self.write(name, part.astype(half_type))
        else:
            is_address = source == "global_smem"  # shared memory begins at 0
            self.write(target, np.zeros((), np.uint32) if is_address else self.read(source, instruction.op[1]))

    def _setp(self, instruction: Instruction) -> None:
        kind = instruction.op[-1]
        first, second = (self.read(operand, "b16" if kind == "bf16" else kind) for operand in instruction.operands[1:])
        if kind == "bf16":
            first, second = (widened(value, kind)[..., 0] for value in (first, second))
        self.write(instruction.operands[0], COMPARISONS[instruction.op[1]](first, second))

    def _selp(self, instruction: Instruction) -> None:
        first, second = (self.read(operand, instruction.op[1]) for operand in instruction.operands[1:3])
        self.write(instruction.operands[0], np.where(self.registers[instruction.operands[3]], first, second))

    def _cvt(self, instruction: Instruction) -> None:
        target, source = instruction.op[-2:]
        if target in ("bf16x2", "f16x2"):
            high, low = (narrow(self.read(operand, source), target[:-2]) for operand in instruction.operands[1:])
            self.write(instruction.operands[0], low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16))
            return
        value = self.read(instruction.operands[1], "b16" if source == "bf16" else source)
        if source == "bf16":
            value = (value.astype(np.uint32) << np.uint32(16)).view(np.float32)
        if "rmi" in instruction.op:
            value = np.floor(value)
        if target in ("bf16", "f16"):
            value = narrow(value, target)
        elif target[0] in "su" and value.dtype.kind == "f":
            assert "rzi" in instruction.op
            limits = np.iinfo(TYPES[target])
            whole = np.trunc(np.where(np.isnan(value), 0, value).astype(np.float64))
            value = np.where(whole >= limits.max, limits.max, np.clip(whole, limits.min, limits.max - 1))
        dtype = TYPES["b16" if target in ("bf16", "f16") else target]
        self.write(instruction.operands[0], np.asarray(value).astype(dtype))

    def _bar(self, instruction: Instruction) -> None:
        self._check_together(self.kernel.threads, "a barrier")
        self.shared.barrier(self.mask)

    def _shfl(self, instruction: Instruction) -> None:
        assert instruction.op[2] in ("bfly", "idx", "up"), instruction.text
        target, source, distance, *rest = instruction.operands
        assert rest == ["0" if instruction.op[2] == "up" else "31", "-1"], instruction.text
        self._check_together(WARP, "a shuffle")
        lanes = np.broadcast_to(self.read(distance, "u32"), self.count).reshape(-1, WARP).astype(np.int64)
        if instruction.op[2] == "bfly":
            lanes = np.arange(WARP) ^ lanes
        elif instruction.op[2] == "up":  # the first lanes keep their own values
            lanes = np.where(np.arange(WARP) >= lanes, np.arange(WARP) - lanes, np.arange(WARP))
        self.write(target, np.take_along_axis(self.read(source, "b32").reshape(-1, WARP), lanes % WARP, 1).reshape(-1))

    def _redux(self, instruction: Instruction) -> None:
        """Reduces integers over a warp."""
        self._check_together(WARP, "a reduction")
        reduce = {"max": np.maximum, "min": np.minimum, "add": np.add, "or": np.bitwise_or}[instruction.op[2]].reduce
        kind = instruction.op[3]
        values = np.broadcast_to(self.read(instruction.operands[1], kind), self.count).reshape(-1, WARP)
        self.write(instruction.operands[0], np.repeat(reduce(values, 1).astype(TYPES[kind]), WARP))

    def _check_together(self, size: int, action: str) -> None:
        groups = self.mask.reshape(-1, size)
        if (groups.any(1) != groups.all(1)).any():
            raise MachineError(f"{action} that only some of its {size} threads reach")

    def _createpolicy(self, instruction: Instruction) -> None:
        self.write(instruction.operands[0], np.zeros((), np.uint64))

    def _ldmatrix(self, instruction: Instruction) -> None:
        rows = self._address(instruction.operands[1]).reshape(-1, WARP)
        for addresses, name in self._matrices(instruction, instruction.operands[1], instruction.operands[0]):
            if "trans" not in instruction.op:
                self.write(name, self.shared.load(addresses, 4, self.mask).view("u4")[:, 0])
                continue
            first, lane = names(instruction.operands[0]).index(name) * 8, np.arange(WARP)
            halves = [
                self.shared.load((rows[:, first + lane % 4 * 2 + half] + lane // 4 * 2).reshape(-1), 2, self.mask)
                for half in (0, 1)
            ]
            self.write(name, np.concatenate(halves, 1).view("u4")[:, 0])

    def _mma(self, instruction: Instruction) -> None:
        """Computes D = A B + C for matrices of 16 x 16 and 16 x 8, spread over the threads of a warp."""
        self._check_together(WARP, "a product of matrices")
        assert instruction.op[1:6] == ("sync", "aligned", "m16n8k16", "row", "col"), instruction.text
        assert instruction.op[6] == instruction.op[9] == "f32", instruction.text
        row, pair = np.arange(WARP) // 4, np.arange(WARP) % 4 * 2
        a, b, c = (
            np.stack([self.read(name, kind).reshape(-1, WARP) for name in names(operand)])
            for operand, kind in zip(instruction.operands[1:], ("b32", "b32", "f32"), strict=True)
        )
        left = np.zeros((a.shape[1], 16, 16), np.float64)
        right = np.zeros((a.shape[1], 16, 8), np.float64)
        sums = np.zeros((a.shape[1], 16, 8), np.float64)
        for half in (0, 1):
            for number in range(4):
                values = widened(a[number], instruction.op[7])[..., half]
                left[:, row + number % 2 * 8, pair + number // 2 * 8 + half] = values
            for number in range(2):
                right[:, pair + number * 8 + half, row] = widened(b[number], instruction.op[8])[..., half]
                sums[:, row + number * 8, pair + half] = c[number * 2 + half]
        sums = (left @ right + sums).astype(np.float32)
        for number, name in enumerate(names(instruction.operands[0])):
            self.write(name, sums[:, row + number // 2 * 8, pair + number % 2].reshape(-1))

    def _cp(self, instruction: Instruction) -> None:
        """Copies to shared memory asynchronously, with zeros behind the bytes of the source, or waits for that."""
        assert instruction.op[1] == "async", instruction.text
        if instruction.op[2] == "commit_group":
            self.shared.commit(self.mask)
        elif instruction.op[2] == "wait_group":
            self.shared.wait(self.mask, int(instruction.operands[0]))
        else:
            assert instruction.op[3:] == ("shared", "global"), instruction.text
            target, source, size, *given = instruction.operands
            data = np.zeros((self.count, int(size, 0)), np.uint8)
            wanted = np.broadcast_to(self.read(given[0], "u32") if given else np.uint32(int(size, 0)), self.count)
            assert np.isin(wanted[self.mask], (0, data.shape[1])).all(), instruction.text
            reads = self.mask & (wanted > 0)
            addresses = self._address(source)[reads].astype(np.uint64)
            data[reads] = self.memory.load(addresses, data.shape[1], "cp.async", self.thread_ids[reads])
            self.shared.copy(self._address(target), data, self.mask)

    def _stmatrix(self, instruction: Instruction) -> None:
        for addresses, name in self._matrices(instruction, instruction.operands[0], instruction.operands[1]):
            self.shared.store(addresses, _as_bytes(self.registers[name][:, None]), self.mask)

    def _matrices(self, instruction: Instruction, address: str, registers: str) -> list[tuple[Any, str]]:
        """Returns, for each matrix of 8 x 8, the address of each thread's two values, and their register."""
        self._check_together(WARP, instruction.op[0])
        assert instruction.op[1:4] == ("sync", "aligned", "m8n8"), instruction.text
        assert instruction.op[-2:] == ("shared", "b16"), instruction.text
        rows, lane = self._address(address).reshape(-1, WARP), np.arange(WARP)
        return [
            ((rows[:, number * 8 + lane // 4] + lane % 4 * 4).reshape(-1), name)
            for number, name in enumerate(names(registers))
        ]

    def _ld(self, instruction: Instruction) -> None:
        registers = names(instruction.operands[0])
        dtype = TYPES[instruction.op[-1]]
        if instruction.op[1] == "param":
            parameter = re.fullmatch(r"\[\w+_param_(\d+)\]", instruction.operands[1])
            assert parameter, instruction.text
            bits = np.array(self.values[int(parameter[1])], np.uint64)
            self.write(registers[0], bits.reshape(1).view(dtype)[0])
            return
        addresses, size = self._address(instruction.operands[1]), dtype.itemsize * len(registers)
        if instruction.op[1] == "shared":
            data = self.shared.load(addresses, size, self.mask)
        else:
            data = np.zeros((self.count, size), np.uint8)
            active = addresses[self.mask].astype(np.uint64)
            data[self.mask] = self.memory.load(active, size, instruction.op[0], self.thread_ids[self.mask])
        for number, name in enumerate(registers):
            self.write(name, data.view(f"u{dtype.itemsize}")[:, number].view(dtype))

    def _st(self, instruction: Instruction) -> None:
        addresses, dtype = self._address(instruction.operands[0]), TYPES[instruction.op[-1]]
        parts = [self.read(name, instruction.op[-1]) for name in names(instruction.operands[1])]
        data = _as_bytes(
            np.stack([np.broadcast_to(part, addresses.shape).view(f"u{dtype.itemsize}") for part in parts], 1)
        )
        if instruction.op[1] == "shared":
            self.shared.store(addresses, data, self.mask)
        else:
            self.memory.store(addresses[self.mask].astype(np.uint64), data[self.mask], self.thread_ids[self.mask])

    def _address(self, operand: str) -> Any:
        base, _, offset = operand.strip("[] ").replace(" ", "").partition("+")
        start = np.zeros(self.count, np.int64) if base == "global_smem" else self.registers[base].astype(np.int64)
        return start + int(offset or 0)


def _as_bytes(values: Any) -> Any:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)


def run(kernel: Kernel, memory: Memory, values: Sequence[int], grid: Sequence[int], shared: int) -> None:
    """Launches a kernel. `values` are the bits of its parameters, `shared` its bytes of shared memory per block.

    Raises MachineError.
    """
    memory.begin_launch()
    blocks = np.arange(int(np.prod(grid)))
    together = max(1, THREADS_TOGETHER // kernel.threads)
    for first in range(0, len(blocks), together):
        Launch(kernel, memory, values, grid, blocks[first : first + together], shared).run()
