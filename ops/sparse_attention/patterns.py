"""The parts of layouts: windows, blocks that every query sees; and the checks of a configuration's arguments."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BIDIRECTIONAL, UNIDIRECTIONAL = "bidirectional", "unidirectional"


def check_direction(attention: str, horizontal: bool) -> None:
    """Raises NotImplementedError for an unknown direction, ValueError for rows of ones that would see what is later."""
    if attention not in (BIDIRECTIONAL, UNIDIRECTIONAL):
        raise NotImplementedError(f"attention is {attention!r}, expected {BIDIRECTIONAL!r} or {UNIDIRECTIONAL!r}")
    if horizontal and attention != BIDIRECTIONAL:
        raise ValueError(f"horizontal_global_attention is True, expected False where attention is {attention!r}")


def check_fits(name: str, number: int, blocks: int) -> None:
    """Raises ValueError if there are fewer blocks than this number."""
    if number > blocks:
        raise ValueError(f"{name} is {number}, expected at most {blocks}, the blocks of the sequence")


def check_sizes(sizes: Sequence[int]) -> None:
    """Raises ValueError unless there is a size, and each is 1 or more: windows of 0 blocks would never end."""
    if not sizes or min(sizes) < 1:
        raise ValueError(f"local_window_blocks is {list(sizes)}, expected one number or more, each of them 1 or more")


def check_ranges(starts: Sequence[int], ends: Sequence[int] | None) -> None:
    """Raises ValueError unless there is a later end for each start."""
    if ends is None:
        return
    if len(starts) != len(ends):
        raise ValueError(
            f"global_block_end_indices has {len(ends)} numbers, expected {len(starts)}, as global_block_indices has"
        )
    for start, end in zip(starts, ends, strict=True):
        if start >= end:
            raise ValueError(f"a range of global blocks is {start} to {end}, expected an end after its start")


def ranges(starts: Sequence[int], ends: Sequence[int] | None, blocks: int) -> list[tuple[int, int]]:
    """Returns the ranges of global blocks that lie in a sequence of so many blocks."""
    ends = [start + 1 for start in starts] if ends is None else ends
    return [(start, min(end, blocks)) for start, end in zip(starts, ends, strict=True) if start < blocks]


def set_windows(layout: Tensor, sizes: Sequence[int], attention: str) -> None:
    """Sets the windows of a head's layout: of the given sizes, and then of the last of them again and again."""
    start, number = 0, 0
    while start < layout.shape[0]:
        end = start + sizes[min(number, len(sizes) - 1)]
        window = layout[start:end, start:end]
        window |= torch.ones_like(window) if attention == BIDIRECTIONAL else torch.ones_like(window).tril()
        start, number = end, number + 1


def set_sliding_window(layout: Tensor, width: int, attention: str) -> None:
    """Sets a window of `width` blocks around each block of a head's layout; its first half if unidirectional."""
    check_fits("num_sliding_window_blocks", width, layout.shape[0])
    for row in range(layout.shape[0]):
        last = row + width // 2 if attention == BIDIRECTIONAL else row
        layout[row, max(0, row - width // 2) : last + 1] = 1


def set_global(layout: Tensor, start: int, end: int, attention: str, sees_all: bool) -> None:
    """Makes blocks [start, end) of a head's layout be seen by all, or all from `start` on, and see all."""
    layout[0 if attention == BIDIRECTIONAL else start :, start:end] = 1
    if sees_all:
        layout[start:end] = 1
