"""Layouts as the kernels read them: lists of blocks, and squares of blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor


class BlockLists(NamedTuple):
    """The blocks of keys that each row of blocks of each head sees."""

    offsets: Tensor
    """int32 [heads * rows + 1]: where each row's list begins in `columns`, and the end of the last one."""
    columns: Tensor
    """int32: the blocks, in ascending order in a row."""


def block_lists(layout: Tensor) -> BlockLists:
    """Returns the lists of a layout [heads, rows, columns]: the blocks that are not 0."""
    heads, rows, columns = layout.nonzero(as_tuple=True)
    counts = torch.bincount(heads * layout.shape[1] + rows, minlength=layout.shape[0] * layout.shape[1])
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return BlockLists(offsets.to(torch.int32), columns.to(torch.int32))


def on_device(tensors: Iterable[Tensor], device: torch.device) -> list[Tensor]:
    """Returns the numbers of a layout's blocks on a device. Raises RuntimeError if a capture of a graph forbids it."""
    from opforge.ops.triton import devices

    return [devices.on_device(tensor, device, "the blocks of this layout") for tensor in tensors]


def split(tensor: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Returns a view with a dimension split into several."""
    view: Tensor = tensor.unflatten(dim, sizes)  # type: ignore[no-untyped-call]
    return view


def checked_layout(layout: Tensor) -> Tensor:
    """Returns a layout as [heads, rows, columns]; one of two dimensions is that of a single head.

    Raises ValueError for another number of dimensions.
    """
    if layout.dim() not in (2, 3):
        raise ValueError(f"layout has shape {tuple(layout.shape)}, expected [heads, rows, columns] or [rows, columns]")
    return (layout if layout.dim() == 3 else layout[None]).long()


def sdd_segment(op: Any, layout: Tensor, start_width: int) -> list[tuple[int, Tensor]]:
    """Returns the squares of a layout, int32 [heads, rows, columns]: of `start_width` blocks, then of half as many.

    Each item is a width and an int32 tensor [blocks, 4] of (head, row, column, number of the block in the layout): a
    square of width * width blocks after the other. What is in a square becomes 0 in `layout`, so all of it does.
    """
    if start_width < 1:
        raise ValueError(f"start_width is {start_width}, expected 1 or more")
    numbers = (layout != 0).flatten().cumsum(0).to(torch.int32).sub_(1).view_as(layout).contiguous()
    squares = layout.new_empty((layout.shape[0], max(layout[0].numel(), 1) if len(layout) else 1, 4), dtype=torch.int32)
    counts = layout.new_zeros((layout.shape[0], 1, 1), dtype=torch.int32)
    squares_by_width, width = [], start_width
    while width > 0:
        op.sparse_segment_(squares, counts, layout, numbers, width)
        parts = [rows[:count].clone() for rows, count in zip(squares, counts.flatten().tolist(), strict=True) if count]
        if parts:
            squares_by_width.append((width, torch.cat(parts)))
        width //= 2
    return squares_by_width


def functions(op: Any) -> dict[str, Any]:
    """Returns the Python functions of the loaded op sparse_attn."""
    return {"sdd_segment": partial(sdd_segment, op)}
