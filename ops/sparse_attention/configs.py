"""Layouts of block-sparse attention: which blocks of keys each block of queries sees.

A layout is an int64 tensor [heads, blocks, blocks] of ones and zeros. The classes have the names, arguments and
attributes of DeepSpeed 0.19.6, and make the same layouts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

BLOCKS = (16, 32, 64, 128)
"""The sizes of blocks that there are kernels for."""
BIDIRECTIONAL, UNIDIRECTIONAL = "bidirectional", "unidirectional"


class SparsityConfig:
    """What all layouts share. A subclass has `make_layout`.

    Args:
        num_heads: Heads of the attention.
        block: Keys, and queries, of a block: 16, 32, 64 or 128.
        different_layout_per_head: Whether each head has a layout of its own. Otherwise all have that of the first.
    """

    def __init__(self, num_heads: int, block: int = 16, different_layout_per_head: bool = False) -> None:
        self.num_heads = num_heads
        self.block = block
        self.different_layout_per_head = different_layout_per_head
        self.num_layout_heads = num_heads if different_layout_per_head else 1

    def setup_layout(self, seq_len: int) -> Tensor:
        """Returns an empty layout for sequences of this length. Raises ValueError unless whole blocks cover it."""
        if seq_len % self.block:
            raise ValueError(
                f"the sequence has {seq_len} tokens, expected a multiple of the block, {self.block}: pad it"
            )
        blocks = seq_len // self.block
        return torch.zeros((self.num_heads, blocks, blocks), dtype=torch.int64)

    def check_and_propagate_first_head_layout(self, layout: Tensor) -> Tensor:
        """Copies the first head's layout to the others, unless each has its own. Returns the layout."""
        if not self.different_layout_per_head:
            layout[1:] = layout[0]
        return layout

    def make_layout(self, seq_len: int) -> Tensor:
        """Returns the layout for sequences of this length."""
        raise NotImplementedError(f"{type(self).__name__} has no layout: use one of its subclasses")


class DenseSparsityConfig(SparsityConfig):
    """All blocks see all blocks."""

    def make_layout(self, seq_len: int) -> Tensor:
        """Returns a layout of ones."""
        return self.setup_layout(seq_len).fill_(1)


class FixedSparsityConfig(SparsityConfig):
    """Windows of blocks that see each other, and the last blocks of each window, which all see (arXiv:1904.10509).

    Args:
        num_heads: Heads of the attention.
        block: Keys, and queries, of a block.
        different_layout_per_head: Whether heads have layouts of their own.
        num_local_blocks: Blocks of a window.
        num_global_blocks: Neighbouring blocks of a window that all blocks see.
        attention: "unidirectional": a block sees none after it. "bidirectional" otherwise.
        horizontal_global_attention: Whether these blocks see all others, too.
        num_different_global_patterns: How many positions in a window these blocks have, a head each in turn.
    """

    def __init__(
        self,
        num_heads: int,
        block: int = 16,
        different_layout_per_head: bool = False,
        num_local_blocks: int = 4,
        num_global_blocks: int = 1,
        attention: str = BIDIRECTIONAL,
        horizontal_global_attention: bool = False,
        num_different_global_patterns: int = 1,
    ) -> None:
        super().__init__(num_heads, block, different_layout_per_head)
        if num_local_blocks % num_global_blocks:
            raise ValueError(
                f"num_local_blocks is {num_local_blocks}, expected a multiple of num_global_blocks, {num_global_blocks}"
            )
        check_direction(attention, horizontal_global_attention)
        most = num_local_blocks // num_global_blocks
        if num_different_global_patterns > 1 and not different_layout_per_head:
            raise ValueError(
                f"num_different_global_patterns is {num_different_global_patterns}, expected 1 where all heads have "
                "one layout: pass different_layout_per_head=True"
            )
        if num_different_global_patterns > most:
            raise ValueError(
                f"num_different_global_patterns is {num_different_global_patterns}, expected at most {most}, "
                "num_local_blocks / num_global_blocks"
            )
        self.num_local_blocks = num_local_blocks
        self.num_global_blocks = num_global_blocks
        self.attention = attention
        self.horizontal_global_attention = horizontal_global_attention
        self.num_different_global_patterns = num_different_global_patterns

    def set_local_layout(self, h: int, layout: Tensor) -> Tensor:
        """Sets the windows of head `h`. Returns the layout."""
        set_windows(layout[h], [self.num_local_blocks], self.attention)
        return layout

    def set_global_layout(self, h: int, layout: Tensor) -> Tensor:
        """Sets the blocks that all see, of head `h`. Returns the layout."""
        blocks, window, width = layout.shape[1], self.num_local_blocks, self.num_global_blocks
        first = window - (1 + h % self.num_different_global_patterns) * width
        whole = blocks - blocks % window
        starts = list(range(first, whole, window))
        if whole < blocks:  # a last window that is shorter
            starts.append(min(whole + first, blocks - width))
        for start in starts:
            set_global(layout[h], start, start + width, self.attention, self.horizontal_global_attention)
        return layout

    def make_layout(self, seq_len: int) -> Tensor:
        """Returns the layout for sequences of this length."""
        layout = self.setup_layout(seq_len)
        for h in range(self.num_layout_heads):
            layout = self.set_global_layout(h, self.set_local_layout(h, layout))
        return self.check_and_propagate_first_head_layout(layout)


class VariableSparsityConfig(SparsityConfig):
    """As `FixedSparsityConfig`, with windows of several sizes, chosen blocks that all see, and random ones.

    Args:
        num_heads: Heads of the attention.
        block: Keys, and queries, of a block.
        different_layout_per_head: Whether heads have layouts of their own, which differ in the random blocks.
        num_random_blocks: Random blocks that each block sees, from Python's generator `random`.
        local_window_blocks: Blocks of the first window, of the second, ... The last number is that of all further ones.
        global_block_indices: The blocks that all see; those outside of a shorter sequence are left out.
        global_block_end_indices: The end of a range for each of these, which is then its begin.
        attention: "unidirectional" or "bidirectional".
        horizontal_global_attention: Whether these blocks see all others, too.
    """

    def __init__(
        self,
        num_heads: int,
        block: int = 16,
        different_layout_per_head: bool = False,
        num_random_blocks: int = 0,
        local_window_blocks: Sequence[int] = (4,),
        global_block_indices: Sequence[int] = (0,),
        global_block_end_indices: Sequence[int] | None = None,
        attention: str = BIDIRECTIONAL,
        horizontal_global_attention: bool = False,
    ) -> None:
        super().__init__(num_heads, block, different_layout_per_head)
        check_ranges(global_block_indices, global_block_end_indices)
        check_direction(attention, horizontal_global_attention)
        self.num_random_blocks = num_random_blocks
        self.local_window_blocks = list(local_window_blocks)
        self.global_block_indices = list(global_block_indices)
        self.global_block_end_indices = global_block_end_indices
        self.attention = attention
        self.horizontal_global_attention = horizontal_global_attention

    def set_random_layout(self, h: int, layout: Tensor) -> Tensor:
        """Sets the random blocks of head `h`. Returns the layout."""
        blocks = layout.shape[1]
        check_fits("num_random_blocks", self.num_random_blocks, blocks)
        for row in range(blocks):
            layout[h, row, random.sample(range(blocks), self.num_random_blocks)] = 1
        return layout

    def set_local_layout(self, h: int, layout: Tensor) -> Tensor:
        """Sets the windows of head `h`. Returns the layout."""
        set_windows(layout[h], self.local_window_blocks, self.attention)
        return layout

    def set_global_layout(self, h: int, layout: Tensor) -> Tensor:
        """Sets the blocks that all see, of head `h`. Returns the layout."""
        for start, end in ranges(self.global_block_indices, self.global_block_end_indices, layout.shape[1]):
            set_global(layout[h], start, end, self.attention, self.horizontal_global_attention)
        return layout

    def make_layout(self, seq_len: int) -> Tensor:
        """Returns the layout for sequences of this length."""
        layout = self.setup_layout(seq_len)
        for h in range(self.num_layout_heads):
            layout = self.set_local_layout(h, self.set_random_layout(h, layout))
            layout = self.set_global_layout(h, layout)
        return self.check_and_propagate_first_head_layout(layout)


class BigBirdSparsityConfig(SparsityConfig):
    """A window that slides, blocks at the begin that all see and that see all, and random ones (arXiv:2007.14062).

    Args:
        num_heads: Heads of the attention.
        block: Keys, and queries, of a block.
        different_layout_per_head: Whether heads have layouts of their own, which differ in the random blocks.
        num_random_blocks: Random blocks that each block sees, from Python's generator `random`.
        num_sliding_window_blocks: Blocks of the window, of which a block is in the middle.
        num_global_blocks: Blocks at the begin that all see and that see all.
        attention: "unidirectional" or "bidirectional".
    """

    def __init__(
        self,
        num_heads: int,
        block: int = 16,
        different_layout_per_head: bool = False,
        num_random_blocks: int = 1,
        num_sliding_window_blocks: int = 3,
        num_global_blocks: int = 1,
        attention: str = BIDIRECTIONAL,
    ) -> None:
        super().__init__(num_heads, block, different_layout_per_head)
        check_direction(attention, False)
        self.num_random_blocks = num_random_blocks
        self.num_sliding_window_blocks = num_sliding_window_blocks
        self.num_global_blocks = num_global_blocks
        self.attention = attention

    def set_random_layout(self, h: int, layout: Tensor) -> Tensor:
        """Sets the random blocks of head `h`. Returns the layout."""
        blocks = layout.shape[1]
        check_fits("num_random_blocks", self.num_random_blocks, blocks)
        for row in range(blocks):
            seen = blocks if self.attention == BIDIRECTIONAL else row + 1
            layout[h, row, random.sample(range(seen), min(self.num_random_blocks, seen))] = 1
        return layout

    def set_sliding_window_layout(self, h: int, layout: Tensor) -> Tensor:
        """Sets the window of head `h`. Returns the layout."""
        set_sliding_window(layout[h], self.num_sliding_window_blocks, BIDIRECTIONAL)
        return layout

    def set_global_layout_itc(self, h: int, layout: Tensor) -> Tensor:
        """Sets the blocks that all see, of head `h`, and removes what a block must not see. Returns the layout."""
        check_fits("num_global_blocks", self.num_global_blocks, layout.shape[1])
        set_global(layout[h], 0, self.num_global_blocks, BIDIRECTIONAL, True)
        return torch.tril(layout) if self.attention == UNIDIRECTIONAL else layout

    def make_layout(self, seq_len: int) -> Tensor:
        """Returns the layout for sequences of this length."""
        layout = self.setup_layout(seq_len)
        for h in range(self.num_layout_heads):
            layout = self.set_sliding_window_layout(h, self.set_random_layout(h, layout))
            layout = self.set_global_layout_itc(h, layout)
        return self.check_and_propagate_first_head_layout(layout)


class BSLongformerSparsityConfig(SparsityConfig):
    """A window that slides, and chosen blocks that all see and that see all (arXiv:2004.05150), in blocks.

    Args:
        num_heads: Heads of the attention.
        block: Keys, and queries, of a block.
        different_layout_per_head: Whether heads have layouts of their own.
        num_sliding_window_blocks: Blocks of the window, of which a block is in the middle.
        global_block_indices: The blocks that all see; those outside of a shorter sequence are left out.
        global_block_end_indices: The end of a range for each of these, which is then its begin.
        attention: "unidirectional" or "bidirectional".
    """

    def __init__(
        self,
        num_heads: int,
        block: int = 16,
        different_layout_per_head: bool = False,
        num_sliding_window_blocks: int = 3,
        global_block_indices: Sequence[int] = (0,),
        global_block_end_indices: Sequence[int] | None = None,
        attention: str = BIDIRECTIONAL,
    ) -> None:
        super().__init__(num_heads, block, different_layout_per_head)
        check_ranges(global_block_indices, global_block_end_indices)
        check_direction(attention, False)
        self.num_sliding_window_blocks = num_sliding_window_blocks
        self.global_block_indices = list(global_block_indices)
        self.global_block_end_indices = global_block_end_indices
        self.attention = attention

    def set_sliding_window_layout(self, h: int, layout: Tensor) -> Tensor:
        """Sets the window of head `h`. Returns the layout."""
        set_sliding_window(layout[h], self.num_sliding_window_blocks, BIDIRECTIONAL)
        return layout

    def set_global_layout(self, h: int, layout: Tensor) -> Tensor:
        """Sets the blocks that all see, of head `h`, and removes what a block must not see. Returns the layout."""
        for start, end in ranges(self.global_block_indices, self.global_block_end_indices, layout.shape[1]):
            set_global(layout[h], start, end, BIDIRECTIONAL, True)
        return torch.tril(layout) if self.attention == UNIDIRECTIONAL else layout

    def make_layout(self, seq_len: int) -> Tensor:
        """Returns the layout for sequences of this length."""
        layout = self.setup_layout(seq_len)
        for h in range(self.num_layout_heads):
            layout = self.set_global_layout(h, self.set_sliding_window_layout(h, layout))
        return self.check_and_propagate_first_head_layout(layout)


class LocalSlidingWindowSparsityConfig(SparsityConfig):
    """A window that slides and nothing else, one layout for all heads.

    Args:
        num_heads: Heads of the attention.
        block: Keys, and queries, of a block.
        num_sliding_window_blocks: Blocks of the window, of which a block is in the middle.
        attention: "unidirectional" (the window's first half and the block) or "bidirectional".
    """

    def __init__(
        self,
        num_heads: int,
        block: int = 16,
        num_sliding_window_blocks: int = 3,
        attention: str = UNIDIRECTIONAL,
    ) -> None:
        super().__init__(num_heads, block)
        check_direction(attention, False)
        self.num_sliding_window_blocks = num_sliding_window_blocks
        self.attention = attention

    def set_sliding_window_layout(self, h: int, layout: Tensor) -> Tensor:
        """Sets the window of head `h`. Returns the layout."""
        set_sliding_window(layout[h], self.num_sliding_window_blocks, self.attention)
        return layout

    def make_layout(self, seq_len: int) -> Tensor:
        """Returns the layout for sequences of this length."""
        layout = self.setup_layout(seq_len)
        for h in range(self.num_layout_heads):
            layout = self.set_sliding_window_layout(h, layout)
        return self.check_and_propagate_first_head_layout(layout)


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
