"""Executes the PTX that Triton makes, in numpy, on memory of this process: what a kernel means, without a GPU.

All threads of many blocks are lanes of one array, and go on in step where they stand at the same place. Caught:
accesses outside the allocations it is told of, unaligned ones, shared memory that one warp writes and another touches
with no barrier between, two threads that write different values to one place or read what another wrote, barriers and
shuffles that not all threads reach.

Not modelled: what ptxas makes of the PTX (it may fuse `mul` and `add`), the last bits of the approximate functions, of
`fma` (computed in float64, then rounded) and of shuffles other than butterflies; blocks that wait for each other;
caches, timing, streams.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

WARP = 32
LANES = 1 << 14
"""At most so many threads are executed together, whole blocks of them."""
TYPES = {
    **{f"{kind}{bits}": np.dtype(f"u{bits // 8}") for kind in "ub" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    "f16": np.dtype("f2"),
    "f32": np.dtype("f4"),
    "f64": np.dtype("f8"),
    "pred": np.dtype("?"),
}
REGISTERS = {"pred": TYPES["pred"], "b16": TYPES["u16"], "b32": TYPES["u32"], "b64": TYPES["u64"]}
STATEMENT = re.compile(r"(?:@(!?)(%p\d+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")


class MachineError(Exception):
    """What a kernel did that a GPU punishes, or does not say."""


class Instruction(NamedTuple):
    """One statement; `guard` is the predicate before it, (name, negated)."""

    op: tuple[str, ...]
    operands: tuple[str, ...]
    guard: tuple[str, bool] | None
    text: str


class Kernel:
    """An entry point of a PTX file: its parameters' sizes, the threads of a block, its instructions."""

    def __init__(self, ptx: str) -> None:
        ptx = re.sub(r"//[^\n]*", "", ptx)
        head, body = ptx[ptx.index(".entry") :].split("{", 1)
        found = re.search(r"\.entry\s+(\w+)\s*\((.*?)\)", head, re.DOTALL)
        assert found
        self.name = found[1]
        self.parameters = [TYPES[kind].itemsize for kind in re.findall(r"\.param\s+\.(\w+)", found[2])]
        threads = re.search(r"\.reqntid\s+(\d+)", head)
        assert threads
        self.threads = int(threads[1])
        self.registers: dict[str, np.dtype[Any]] = {}
        self.labels: dict[str, int] = {}
        self.code: list[Instruction] = []
        for line in re.split(r"[;\n]", body.rsplit("}", 1)[0]):
            self._read(line.strip())
        self.leaders = {0, len(self.code), *self.labels.values()}
        self.leaders |= {place + 1 for place, one in enumerate(self.code) if one.op[0] in ("bra", "ret")}

    def _read(self, line: str) -> None:
        if declared := re.match(r"\.reg\s+\.(\w+)\s+(%\w+)<(\d+)>", line):
            kind, name, count = declared.groups()
            self.registers.update({f"{name}{number}": REGISTERS[kind] for number in range(int(count))})
        elif line.endswith(":"):
            self.labels[line[:-1]] = len(self.code)
        elif line and line[0] not in "{}.":
            found = STATEMENT.fullmatch(line)
            assert found, line
            guard = (found[2], found[1] == "!") if found[2] else None
            op = tuple(found[3].split("."))
            self.code.append(Instruction(op, tuple(OPERAND.findall(found[4])), guard, line))


class Memory:
    """The allocations that a kernel may touch: (address, bytes) of each."""

    def __init__(self, allocations: Sequence[tuple[int, int]]) -> None:
        import ctypes

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
        result = compute(one.op, *([_flushed(value) for value in values] if flush else values))
        self.write(one.operands[0], _flushed(result) if flush else result)

    def read(self, operand: str, kind: str) -> Any:
        """A register, a special one, a constant, or the address of shared memory, as values of this type."""
        dtype = TYPES.get(kind, TYPES["u32"])
        if operand in self.special:
            return self.special[operand]
        found = self.registers.get(operand)
        if found is None:
            return _constant(operand, dtype)
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
            parts = [self.read(name, "b16" if one.op[1] == "b32" else "b32") for name in _names(source)]
            width = 8 * parts[0].dtype.itemsize
            dtype = TYPES[one.op[1]]
            low, high = (np.asarray(part).astype(dtype) for part in parts)
            self.write(to, low | high << dtype.type(width))
        elif to.startswith("{"):
            value, half = self.read(source, one.op[1]), TYPES["b16" if one.op[1] == "b32" else "b32"]
            for number, name in enumerate(_names(to)):
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
            high, low = (_narrow(self.read(operand, source), to[:-2]) for operand in one.operands[1:])
            self.write(one.operands[0], low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16))
            return
        value = self.read(one.operands[1], "b16" if source == "bf16" else source)
        if source == "bf16":
            value = (value.astype(np.uint32) << np.uint32(16)).view(np.float32)
        if to in ("bf16", "f16"):
            value = _narrow(value, to)
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
        self._together(WARP, "ldmatrix")
        assert one.op[4:] == ("x1", "shared", "b16"), one.text
        rows = self._address(one.operands[1]).reshape(-1, WARP)[:, :8]
        lane = np.arange(WARP)
        self.write(
            _names(one.operands[0])[0], self._load_shared((rows[:, lane // 4] + lane % 4 * 4).reshape(-1), 4, 1)[:, 0]
        )

    def _stmatrix(self, one: Instruction) -> None:
        self._together(WARP, "stmatrix")
        assert one.op[4:] == ("x4", "shared", "b16"), one.text
        rows, lane = self._address(one.operands[0]).reshape(-1, WARP), np.arange(WARP)
        for number, name in enumerate(_names(one.operands[1])):
            at = rows[:, number * 8 + lane // 4] + lane % 4 * 4
            self._store_shared(at.reshape(-1), self.registers[name][:, None])

    def _ld(self, one: Instruction) -> None:
        names = _names(one.operands[0])
        dtype = TYPES[one.op[-1]]
        if one.op[1] == "param":
            found = re.fullmatch(r"\[\w+_param_(\d+)\]", one.operands[1])
            assert found, one.text
            raw = np.array(self.values[int(found[1])], np.uint64).reshape(1).view(dtype)[0]
            self.write(names[0], raw)
            return
        at = self._address(one.operands[1])
        if one.op[1] == "shared":
            values = self._load_shared(at, dtype.itemsize, len(names))
        else:
            values = self._load_global(at, dtype.itemsize, len(names), one)
        for number, name in enumerate(names):
            self.write(name, values[:, number].view(dtype))

    def _st(self, one: Instruction) -> None:
        at, dtype = self._address(one.operands[0]), TYPES[one.op[-1]]
        parts = [self.read(name, one.op[-1]) for name in _names(one.operands[1])]
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


def _names(operand: str) -> list[str]:
    return [name.strip() for name in operand.strip("{} ").split(",")]


def _constant(text: str, dtype: np.dtype[Any]) -> Any:
    text = text.removesuffix("U")
    if text[:2] in ("0f", "0d"):
        bits = np.array(int(text[2:], 16), np.uint32 if text[1] == "f" else np.uint64)
        return bits.view(dtype) if bits.itemsize == dtype.itemsize else bits.view("f4" if text[1] == "f" else "f8")
    number = int(text, 0) & (1 << 8 * dtype.itemsize) - 1
    return np.array(number, f"u{dtype.itemsize}").view(dtype)


def _flushed(value: Any) -> Any:
    """Float32 values with the subnormal ones made zero."""
    small = np.abs(value) < np.finfo(np.float32).tiny
    return np.where(small, np.copysign(np.float32(0), value), value)


def _narrow(value: Any, to: str) -> Any:
    """Float32 values as the bits of float16 or bfloat16, rounded to the nearest, halves to even."""
    if to == "f16":
        return np.asarray(value).astype(np.float16).view(np.uint16)
    bits = np.asarray(value).view(np.uint32)
    nearest = (bits + (np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))) >> np.uint32(16)
    return np.where(np.isnan(value), 0x7FFF, nearest).astype(np.uint16)


def _multiply(op: tuple[str, ...], a: Any, b: Any) -> Any:
    if "wide" in op:
        wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
        return a.astype(wide) * np.asarray(b).astype(wide)
    assert "lo" in op or a.dtype.kind == "f", op
    return a * b


def _divide(op: tuple[str, ...], a: Any, b: Any) -> Any:
    if a.dtype.kind == "f" or np.asarray(b).dtype.kind == "f":
        huge = (np.abs(b) > 2.0**126) & np.isfinite(b)
        return np.where(huge, a * np.float32(0), a / b) if "approx" in op else a / b
    quotient = a // np.where(b == 0, 1, b)
    return quotient + ((a % np.where(b == 0, 1, b) != 0) & ((a < 0) != (b < 0)))  # towards zero


def _fuse(op: tuple[str, ...], a: Any, b: Any, c: Any) -> Any:
    if a.dtype.kind != "f" and np.asarray(b).dtype.kind != "f":
        return _multiply(op, a, b) + c
    return (np.asarray(a, np.float64) * np.asarray(b, np.float64) + c).astype(np.asarray(a).dtype)


def _extreme(drop: Any, keep: Any) -> Callable[..., Any]:
    return lambda op, a, b: (keep if "NaN" in op or np.asarray(a).dtype.kind != "f" else drop)(a, b)


def _shift_left(op: tuple[str, ...], a: Any, b: Any) -> Any:
    room = 8 * a.itemsize
    return np.where(b < room, a << np.minimum(b, room - 1).astype(a.dtype), a.dtype.type(0))


def _shift_right(op: tuple[str, ...], a: Any, b: Any) -> Any:
    return a >> np.minimum(np.asarray(b).view(f"u{a.itemsize}"), 8 * a.itemsize - 1).astype(a.dtype)


def _field(op: tuple[str, ...], a: Any, position: Any, length: Any) -> Any:
    room = 8 * a.itemsize
    up = a.dtype.type(room - int(position) - int(length))
    return (a << up) >> a.dtype.type(room - int(length))


def _permute(op: tuple[str, ...], a: Any, b: Any, selector: Any) -> Any:
    both = np.asarray(a).astype(np.uint64) | np.asarray(b).astype(np.uint64) << np.uint64(32)
    chosen = np.zeros_like(both)
    for byte in range(4):
        nibble = np.asarray(selector).astype(np.uint64) >> np.uint64(4 * byte) & np.uint64(15)
        picked = both >> (nibble & np.uint64(7)) * np.uint64(8) & np.uint64(0xFF)
        sign = np.where(picked & np.uint64(0x80), np.uint64(0xFF), np.uint64(0))
        chosen |= np.where(nibble & np.uint64(8), sign, picked) << np.uint64(8 * byte)
    return chosen.astype(np.uint32)


COMPARISONS: dict[str, Any] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": lambda a, b: (a != b) & (a == a) & (b == b),
    "neu": np.not_equal,
}
ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lambda op, a, b: a + b,
    "sub": lambda op, a, b: a - b,
    "mul": _multiply,
    "fma": _fuse,
    "div": _divide,
    "min": _extreme(np.fmin, np.minimum),
    "max": _extreme(np.fmax, np.maximum),
    "abs": lambda op, a: np.abs(a),
    "neg": lambda op, a: -a,
    "sqrt": lambda op, a: np.sqrt(a),
    "ex2": lambda op, a: np.exp2(np.asarray(a, np.float64)).astype(np.float32),
    "and": lambda op, a, b: a & b,
    "or": lambda op, a, b: a | b,
    "xor": lambda op, a, b: a ^ b,
    "not": lambda op, a: ~a,
    "mad": _fuse,
    "shl": _shift_left,
    "shr": _shift_right,
    "bfe": _field,
    "prmt": _permute,
}
