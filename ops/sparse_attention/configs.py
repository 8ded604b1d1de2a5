"""Layouts of block-sparse attention: which blocks of keys each block of queries sees.

A layout is an int64 tensor [heads, blocks, blocks] of ones and zeros. The classes have the names, arguments and
attributes of DeepSpeed 0.19.6, and make the same layouts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from .patterns import (
    BIDIRECTIONAL,
    check_direction,
    check_fits,
    check_ranges,
    check_sizes,
    ranges,
    set_global,
    set_windows,
)

BLOCKS = (16, 32, 64, 128)
"""The sizes of blocks that there are kernels for."""


class SparsityConfig:
    """Base class of all layouts. A subclass has `make_layout`.

    Args:
        num_heads: Heads of the attention.
        block: Keys, and queries, of a block: 16, 32, 64 or 128.
        different_layout_per_head: Whether each head has a layout of its own. Otherwise all have that of the first.
    """

    def __init__(self, num_heads: int, block: int = 16, different_layout_per_head: bool = False) -> None:
        for name, value in (("num_heads", num_heads), ("block", block)):
            if not hasattr(type(value), "__index__") or value < 1:
                raise ValueError(f"{name} is {value!r}, expected a whole number, at least 1")
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
        layout = self.setup_layout(seq_len)
        for h in range(self.num_layout_heads):
            layout = self._set_layout(h, layout)
        return self.check_and_propagate_first_head_layout(layout)

    def _set_layout(self, h: int, layout: Tensor) -> Tensor:
        """Sets the blocks that a head sees in an empty layout, and returns the layout."""
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

    def _set_layout(self, h: int, layout: Tensor) -> Tensor:
        return self.set_global_layout(h, self.set_local_layout(h, layout))


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
        check_sizes(local_window_blocks)
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

    def _set_layout(self, h: int, layout: Tensor) -> Tensor:
        layout = self.set_local_layout(h, self.set_random_layout(h, layout))
        return self.set_global_layout(h, layout)
