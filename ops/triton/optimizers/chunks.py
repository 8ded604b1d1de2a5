"""Tables that describe many tensors in chunks, so that one launch updates all tensors of one kernel.

A row of a table describes one chunk: its address in each list (0 if there is no such list), the dtypes, the number of
its values, and the index of its tensor in the call. Tables are cached by the tensors' addresses, so that a step with
the same tensors copies nothing to the device.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from opforge.builders.triton.optimizers import ANY, ELEMENTS, SIGNATURES, Dtypes
from opforge.ops.triton import devices, registry

SMALLEST_CHUNK, LARGEST_CHUNK = 1 << 12, 1 << 16
"""The bounds of a row's number of values: multiples of every kernel's block."""
ROWS_PER_MULTIPROCESSOR = 128
"""The aim, unless chunks would become too small. It is several times what a multiprocessor runs at once, so that few
multiprocessors idle while the last rows are processed."""
FEW_ROWS = 64
"""So many rows of a table, or fewer, are computed by Python."""
CACHED_TABLES = 16
"""The number of tables that are cached; the least recently used one is dropped first."""
CODES = {dtype: code for code, dtype in enumerate(ELEMENTS)}
"""A dtype's name -> its two bits in a row."""


class Table(NamedTuple):
    """The tensors of a call that one kernel updates. The table is on their device."""

    dtypes: Dtypes
    rows: Tensor
    """int64 [chunks, lists + 3]: an address per list, the dtypes, the number of values, the tensor's index."""
    spans: Tensor
    """int64 [tensors, 3]: a tensor's first row, the row after its last one, and its index in the call."""
    stream: int
    """The stream on which the table was created. Its later allocations may reuse the table's memory."""


_tables: dict[tuple[object, ...], Table] = {}
captured_tables: list[Table] = []
"""Tables that are never dropped: captured graphs read them at every replay."""


def reset() -> None:
    """Drops all tables, also those that captured graphs read."""
    _tables.clear()
    captured_tables.clear()


def tables(op: str, lists: Mapping[str, Sequence[Tensor]]) -> list[Table]:
    """Returns one table for each kernel that these lists need: params, grads, states, and copies or an empty list.

    Tensors whose mix of dtypes has no kernel of its own, or whose addresses are not multiples of 16, share the kernel
    for any mix.

    Raises:
        ValueError: the lists differ in length; tensors of the same index differ in shape or strides; a tensor has gaps;
            or not all tensors are on one device.
        TypeError: there are no kernels for a dtype.
        RuntimeError: the table is not cached, and a graph is being captured.
    """
    present = [tensors for tensors in lists.values() if tensors]
    addresses = [[tensor.data_ptr() for tensor in tensors] for tensors in present]
    if (sizes := _sizes_of_like_tensors(lists, present)) is not None:  # the usual case: each list has one dtype
        dtypes = _dtypes([tensors[0] for tensors in present], len(lists))
        aligned = not any(address % 16 for column in addresses for address in column)
        indices = list(range(len(sizes))) if 0 not in sizes else [index for index, size in enumerate(sizes) if size]
        if not indices:
            return []
        return [_table(dtypes if aligned and dtypes in SIGNATURES else ANY, list(lists.values()), indices, addresses)]
    _check(op, lists)
    indices_by_kernel: dict[Dtypes, list[int]] = {}
    for index, tensors in enumerate(zip(*present, strict=True)):
        if tensors[0].numel():
            dtypes = _dtypes(tensors, len(lists))
            aligned = not any(tensor.data_ptr() % 16 for tensor in tensors)
            if not aligned or dtypes not in SIGNATURES:
                dtypes = ANY
            indices_by_kernel.setdefault(dtypes, []).append(index)
    return [_table(dtypes, list(lists.values()), indices, addresses) for dtypes, indices in indices_by_kernel.items()]


def _dtypes(tensors: Sequence[Tensor], lists: int) -> Dtypes:
    """Returns the dtypes of one tensor of each list, of so many: ANY if the states differ."""
    names = [registry.DTYPE_NAMES[tensor.dtype] for tensor in tensors]
    states, copies = names[2 : lists - 1], names[lists - 1 :]
    return Dtypes(names[0], names[1], states[0], copies[0] if copies else "none") if len(set(states)) == 1 else ANY


def _sizes_of_like_tensors(lists: Mapping[str, Sequence[Tensor]], present: list[Sequence[Tensor]]) -> list[int] | None:
    """Returns the numbers of values if the lists are as they should be, and each has one dtype; None otherwise.

    It compares lists as a whole: `_check`, which finds out what is wrong, takes four times as long.
    """
    first = present[0] if present else ()
    required = len(lists) - 1 if not lists.get("copies", True) else len(lists)
    if len(present) != required or any(len(tensors) != len(first) for tensors in present):
        return None
    shapes, strides = [tensor.shape for tensor in first], [tensor.stride() for tensor in first]
    for tensors in present:
        if tensors is not first and (
            [tensor.shape for tensor in tensors] != shapes or [tensor.stride() for tensor in tensors] != strides
        ):
            return None
        dtypes, devices_here = {tensor.dtype for tensor in tensors}, {tensor.device for tensor in tensors}
        if len(dtypes) != 1 or not dtypes <= registry.DTYPE_NAMES.keys() or devices_here != {first[0].device}:
            return None
    return [tensor.numel() for tensor in first] if all(tensor.is_contiguous() for tensor in first) else None


def _table(dtypes: Dtypes, lists: Sequence[Sequence[Tensor]], indices: list[int], addresses: list[list[int]]) -> Table:
    """Returns the table of the tensors with these indices, from the cache if it is there."""
    first = lists[0][indices[0]]
    if len(indices) < len(lists[0]):
        addresses = [[column[index] for index in indices] for column in addresses]
    codes = [_dtype_codes(lists, index) for index in indices] if dtypes == ANY else [0]
    sizes = [lists[0][index].numel() for index in indices]
    key = (str(first.device), dtypes, tuple(indices), tuple(sizes), tuple(codes), len(lists), *map(tuple, addresses))
    table = _tables.pop(key, None)
    capturing = devices.is_capturing(first.device)
    if table is None:
        devices.check_copies(first.device, "the addresses of these tensors")
        columns = iter(addresses)
        table = _new_table(dtypes, [(next(columns), part) if part else None for part in lists], indices, sizes, codes)
        while len(_tables) >= CACHED_TABLES:
            del _tables[next(iter(_tables))]
    if capturing:
        if not any(table is captured for captured in captured_tables):
            captured_tables.append(table)
    elif table.stream != devices.raw_stream(first.device):
        # Otherwise the memory could be reused, once the table is dropped, while this stream still reads it.
        for tensor in (table.rows, table.spans):
            devices.record_stream(tensor)
    _tables[key] = table
    return table


def _dtype_codes(lists: Sequence[Sequence[Tensor]], index: int) -> int:
    """Returns the dtypes of the tensors with this index, two bits per list."""
    codes = [CODES[registry.DTYPE_NAMES[tensors[index].dtype]] if tensors else 0 for tensors in lists]
    return sum(code << 2 * column for column, code in enumerate(codes))


def _new_table(
    dtypes: Dtypes,
    lists: Sequence[tuple[list[int], Sequence[Tensor]] | None],
    indices: list[int],
    sizes: list[int],
    codes: list[int],
) -> Table:
    """Returns a table of tensors at these addresses, by list, and of these sizes."""
    assert lists[0] is not None
    device = lists[0][1][indices[0]].device
    chunk = chunk_size(sum(sizes), devices.multiprocessor_count(device))
    counts = [-(-size // chunk) for size in sizes]
    ends = list(itertools.accumulate(counts))
    begins = [end - count for end, count in zip(ends, counts, strict=True)]
    make_rows = _few_rows if ends[-1] <= FEW_ROWS else _many_rows
    rows = make_rows(lists, indices, sizes, codes, counts, chunk)
    spans = torch.tensor([*zip(begins, ends, indices, strict=True)], device="cpu")
    return Table(dtypes, _copied(rows, device), _copied(spans, device), devices.raw_stream(device))


def _few_rows(
    lists: Sequence[tuple[list[int], Sequence[Tensor]] | None],
    indices: list[int],
    sizes: list[int],
    codes: list[int],
    _counts: list[int],
    chunk: int,
) -> Tensor:
    """Returns the rows of a table, computed one by one: for a few, torch's calls in `_many_rows` take longer."""
    rows = []
    for number, (index, size) in enumerate(zip(indices, sizes, strict=True)):
        parts = [(part[0][number], part[1][index].element_size()) if part else (0, 0) for part in lists]
        for start in range(0, size, chunk):
            addresses = [address + start * width for address, width in parts]
            rows.append([*addresses, codes[number % len(codes)], min(size - start, chunk), index])
    return torch.tensor(rows, device="cpu")


def _many_rows(
    lists: Sequence[tuple[list[int], Sequence[Tensor]] | None],
    indices: list[int],
    sizes: list[int],
    codes: list[int],
    counts: list[int],
    chunk: int,
) -> Tensor:
    """Returns the rows of a table, all computed at once."""
    per_tensor = torch.tensor([indices, sizes, [0, *itertools.accumulate(counts[:-1])]], device="cpu")
    row = torch.arange(sum(counts), device="cpu")
    owner = torch.repeat_interleave(torch.tensor(counts, device="cpu"))
    number, size, begin = (values[owner] for values in per_tensor)
    starts = (row - begin) * chunk
    columns = [
        torch.zeros_like(row) if part is None else _addresses(*part, indices, owner, starts, len(codes) == 1)
        for part in lists
    ]
    kinds = torch.tensor(codes, device="cpu")[owner] if len(codes) > 1 else torch.full_like(row, codes[0])
    return torch.stack([*columns, kinds, (size - starts).clamp_max(chunk), number], 1)


def _addresses(
    column: list[int], tensors: Sequence[Tensor], indices: list[int], owner: Tensor, starts: Tensor, is_like: bool
) -> Tensor:
    """Returns the addresses of chunks that begin at these values of their tensors. `is_like`: these have one dtype."""
    widths = [tensors[indices[0]].element_size()] if is_like else [tensors[index].element_size() for index in indices]
    width = widths[0] if len(set(widths)) == 1 else torch.tensor(widths, device="cpu")[owner]
    return torch.tensor(column, device="cpu")[owner] + starts * width


def chunk_size(values: int, multiprocessors: int) -> int:
    """Returns the number of values of one row, a power of two, if a table has `values` values in all."""
    size = values // (ROWS_PER_MULTIPROCESSOR * multiprocessors)
    return min(LARGEST_CHUNK, max(SMALLEST_CHUNK, 1 << max(size, 1).bit_length() - 1))


def _copied(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns the tensor on the device, without waiting for the device's queued work.

    Another stream that updates the same parameters must wait for this stream, and so for the copy. torch keeps the
    page-locked memory until the copy is done.
    """
    return devices.pin_memory(tensor, device).to(device, non_blocking=True)


def _check(op: str, lists: Mapping[str, Sequence[Tensor]]) -> None:
    names = list(lists)
    first = lists[names[0]]
    for name, tensors in lists.items():
        if len(tensors) != len(first) and (tensors or name != "copies"):
            raise ValueError(f"{op}: {name} holds {len(tensors)} tensors, expected {len(first)} as {names[0]} does")
        for index, tensor in enumerate(tensors):
            like = first[index]
            if tensor.shape != like.shape or tensor.stride() != like.stride() or tensor.device != first[0].device:
                raise ValueError(
                    f"{op}: {name}[{index}] has shape {tuple(tensor.shape)}, strides {tensor.stride()}, on"
                    f" {tensor.device}; expected those of {names[0]}[{index}]: {tuple(like.shape)}, {like.stride()},"
                    f" {first[0].device}"
                )
            registry.dtype_name(op, tensor)
            if not _is_dense(tensor):
                raise ValueError(f"{op}: {name}[{index}] has gaps between its values: pass .contiguous() tensors")


def _is_dense(tensor: Tensor) -> bool:
    """Returns whether the tensor's values are adjacent in memory, in any order of dimensions."""
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
