"""Many tensors as tables of chunks, so that one launch updates all that one kernel serves.

A row of a table holds the addresses at which each list's chunk begins (0 where there is no such list), the dtypes, how
many values it has, and which tensor of the call it is. Tables are kept for as long as the addresses stay, so that a
step whose tensors lie where they did copies nothing to the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from opforge.builders.triton.optimizers import ANY, ELEMENTS, SIGNATURES, Dtypes

from . import devices, registry

LEAST, CHUNK = 1 << 12, 1 << 16
"""Values of one row, at least and at most: multiples of every kernel's block."""
PROGRAMS = 128
"""Rows that a multiprocessor should get, where the least chunk allows it: several times what it runs at once, so that
few of them idle while the last rows are worked on."""
KEPT = 16
"""How many tables are kept, the newest."""
CODES = {dtype: code for code, dtype in enumerate(ELEMENTS)}


class Table(NamedTuple):
    """The tensors of a call that one kernel serves, on their device."""

    dtypes: Dtypes
    rows: Tensor
    spans: Tensor
    """Of each tensor: its first row, the row after its last, and its place in the call."""
    stream: int
    """The stream on which the table was made, and whose allocations may take its memory once it is dropped."""


_tables: dict[tuple[object, ...], Table] = {}
_captured: list[Table] = []
"""Tables that graphs read whenever they are replayed: these stay."""


def tables(op: str, lists: Mapping[str, Sequence[Tensor]]) -> list[Table]:
    """One table for each kernel that these lists take: params, grads, states, and copies or an empty list.

    Tensors in a mix of dtypes that has no kernel of its own, or at addresses that 16 does not divide, share the kernel
    for any. Raises ValueError or TypeError unless the lists go together: one length, sizes and memory order in pairs,
    no gaps, one device.
    """
    _check(op, lists)
    parts: dict[Dtypes, list[int]] = {}
    for place, together in enumerate(zip(*(each for each in lists.values() if each), strict=True)):
        if together[0].numel():
            names = [registry.dtype_name(op, one) for one in together]
            states, copies = names[2 : len(lists) - 1], names[len(lists) - 1 :]
            dtypes = Dtypes(names[0], names[1], states[0], copies[0] if copies else "none")
            aligned = not any(one.data_ptr() % 16 for one in together)
            if len(set(states)) > 1 or not aligned or dtypes not in SIGNATURES:
                dtypes = ANY
            parts.setdefault(dtypes, []).append(place)
    return [_table(dtypes, list(lists.values()), places) for dtypes, places in parts.items()]


def _table(dtypes: Dtypes, lists: Sequence[Sequence[Tensor]], places: list[int]) -> Table:
    first = lists[0][places[0]]
    pointers = [tuple(each[place].data_ptr() for place in places) for each in lists if each]
    kinds = [_kinds(lists, place) for place in places] if dtypes == ANY else [0]
    sizes = [lists[0][place].numel() for place in places]
    key = (str(first.device), dtypes, tuple(places), tuple(sizes), tuple(kinds), len(lists), *pointers)
    found = _tables.pop(key, None)
    capturing = devices.is_capturing(first.device)
    if found is None:
        if capturing:
            raise RuntimeError(
                "the addresses of these tensors are not on the device yet, and nothing can be copied there while a"
                " graph is captured: run one step with the same tensors first"
            )
        found = _make(dtypes, lists, places, kinds)
        while len(_tables) >= KEPT:
            del _tables[next(iter(_tables))]
    if capturing:
        if not any(one is found for one in _captured):
            _captured.append(found)
    elif found.stream != devices.raw_stream(first.device):
        for one in (found.rows, found.spans):
            devices.record_stream(one)
    _tables[key] = found
    return found


def _kinds(lists: Sequence[Sequence[Tensor]], place: int) -> int:
    """The dtypes of a tensor and of those beside it, two bits each."""
    codes = [CODES[registry.NAMES[each[place].dtype]] if each else 0 for each in lists]
    return sum(code << 2 * column for column, code in enumerate(codes))


def _make(dtypes: Dtypes, lists: Sequence[Sequence[Tensor]], places: list[int], kinds: list[int]) -> Table:
    pieces, spans, row = [], [], 0
    device = lists[0][places[0]].device
    chunk = _chunk(sum(lists[0][place].numel() for place in places), devices.multiprocessor_count(device))
    for index, place in enumerate(places):
        size = lists[0][place].numel()
        starts = torch.arange(0, size, chunk, dtype=torch.int64)
        columns = [
            each[place].data_ptr() + starts * each[place].element_size() if each else torch.zeros_like(starts)
            for each in lists
        ]
        told = [torch.full_like(starts, kinds[index % len(kinds)])]
        told += [(size - starts).clamp_max(chunk), torch.full_like(starts, place)]
        pieces.append(torch.stack([*columns, *told], 1))
        spans.append((row, row + len(starts), place))
        row += len(starts)
    rows, ends = torch.cat(pieces), torch.tensor(spans, dtype=torch.int64)
    return Table(dtypes, _onto(device, rows), _onto(device, ends), devices.raw_stream(device))


def _chunk(values: int, processors: int) -> int:
    """Values of one row: a power of two."""
    wanted = values // (PROGRAMS * processors)
    return min(CHUNK, max(LEAST, 1 << max(wanted, 1).bit_length() - 1))


def _onto(device: torch.device, tensor: Tensor) -> Tensor:
    """The tensor on the device, without waiting for what the device has yet to do. A stream that may update the same
    parameters comes after this one, and so after the copy; torch keeps the pinned memory until it has been read."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _check(op: str, lists: Mapping[str, Sequence[Tensor]]) -> None:
    names = list(lists)
    first = lists[names[0]]
    for name, tensors in lists.items():
        if len(tensors) != len(first) and (tensors or name != "copies"):
            raise ValueError(f"{op}: {name} holds {len(tensors)} tensors, expected {len(first)} as {names[0]} does")
        for index, one in enumerate(tensors):
            like = first[index]
            if one.shape != like.shape or one.stride() != like.stride() or one.device != first[0].device:
                raise ValueError(
                    f"{op}: {name}[{index}] has shape {tuple(one.shape)}, strides {one.stride()}, on {one.device}; "
                    f"expected those of {names[0]}[{index}]: {tuple(like.shape)}, {like.stride()}, {first[0].device}"
                )
            registry.dtype_name(op, one)
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
