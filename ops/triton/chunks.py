"""Many tensors as one table of chunks, so that one launch updates them all.

A row of the table holds the addresses at which each list's chunk begins, and how many values it has. Tables are kept
for as long as the addresses stay, so that a step whose tensors lie where they did copies nothing to the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from . import registry

CHUNK = 1 << 16
"""Values of one row: a multiple of every kernel's block."""
KEPT = 16
"""How many tables are kept, the newest."""


class Table(NamedTuple):
    """The table on its device, and for each tensor its first row and the row after its last."""

    rows: Tensor
    spans: Tensor
    aligned: bool
    """Every address is divisible by 16."""


_tables: dict[tuple[object, ...], Table] = {}
_captured: list[Table | None] = []
"""Tables that graphs read whenever they are replayed: these stay."""


def table(lists: Sequence[Sequence[Tensor]], numbered: bool = False) -> Table:
    """The table of lists whose n-th tensors have one size; `numbered` adds n before the count."""
    pointers = [[one.data_ptr() for one in each] for each in lists]
    sizes = [one.numel() for one in lists[0]]
    device = lists[0][0].device
    steps = [one[0].element_size() for one in lists]
    key = (str(device), numbered, tuple(sizes), tuple(steps), *map(tuple, pointers))
    found = _tables.pop(key, None)
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if capturing and found is None:
        raise RuntimeError(
            "the addresses of these tensors are not on the device yet, and nothing can be copied there while a graph is"
            " captured: run one step with the same tensors first"
        )
    if capturing:
        _captured.append(found)
    if found is None:
        found = _make(pointers, sizes, steps, numbered, device)
        while len(_tables) >= KEPT:
            del _tables[next(iter(_tables))]
    _tables[key] = found
    return found


def _make(
    pointers: Sequence[Sequence[int]], sizes: Sequence[int], steps: Sequence[int], numbered: bool, device: torch.device
) -> Table:
    pieces, spans, row = [], [], 0
    for number, size in enumerate(sizes):
        starts = torch.arange(0, size, CHUNK, dtype=torch.int64)
        columns = [each[number] + starts * step for each, step in zip(pointers, steps, strict=True)]
        if numbered:
            columns.append(torch.full_like(starts, number))
        pieces.append(torch.stack([*columns, (size - starts).clamp_max(CHUNK)], 1))
        spans.append((row, row + len(starts)))
        row += len(starts)
    aligned = not any(address % 16 for each in pointers for address in each)
    return Table(torch.cat(pieces).to(device), torch.tensor(spans, dtype=torch.int64).to(device), aligned)


def check(op: str, lists: Mapping[str, Sequence[Tensor]], states: Sequence[str]) -> None:
    """Raises ValueError or TypeError unless the lists go together: one length, sizes and memory order in pairs, no
    gaps, one device; one dtype for all but `states`, which are float32."""
    names = list(lists)
    first = lists[names[0]]
    for name, tensors in lists.items():
        if len(tensors) != len(first):
            raise ValueError(f"{op}: {name} holds {len(tensors)} tensors, expected {len(first)} as {names[0]} does")
        for index, (one, like) in enumerate(zip(tensors, first, strict=True)):
            dtype = torch.float32 if name in states else first[0].dtype
            if one.dtype != dtype:
                raise TypeError(f"{op}: {name}[{index}] is {one.dtype}, expected {dtype}")
            if one.shape != like.shape or one.stride() != like.stride() or one.device != first[0].device:
                raise ValueError(
                    f"{op}: {name}[{index}] has shape {tuple(one.shape)}, strides {one.stride()}, on {one.device}; "
                    f"expected those of {names[0]}[{index}]: {tuple(like.shape)}, {like.stride()}, {first[0].device}"
                )
            if not _is_dense(one):
                raise ValueError(f"{op}: {name}[{index}] has gaps between its values: pass .contiguous() tensors")


def _is_dense(tensor: Tensor) -> bool:
    """Whether its values lie side by side, in whatever order of dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True


def define(name: str, lists: dict[str, bool], numbers: str, run: Callable[..., None]) -> object:
    """Register an op over lists of tensors that returns nothing; `lists` tells which of them it changes."""
    marks = [f"({letter}!)" if changed else "" for letter, changed in zip("abcdefg", lists.values(), strict=False)]
    told = [f"Tensor{mark}[] {one}" for mark, one in zip(marks, lists, strict=True)]
    return registry.define(f"{name}({', '.join(told)}, *, {numbers}) -> ()", run, lambda *_lists, **_numbers: None)
