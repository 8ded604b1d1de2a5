"""Layouts with a window of blocks that slides over the sequence; see configs.py."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from .configs import SparsityConfig
from .patterns import (
    BIDIRECTIONAL,
    UNIDIRECTIONAL,
    check_direction,
    check_fits,
    check_ranges,
    ranges,
    set_global,
    set_sliding_window,
)


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

    def _set_layout(self, h: int, layout: Tensor) -> Tensor:
        layout = self.set_sliding_window_layout(h, self.set_random_layout(h, layout))
        return self.set_global_layout_itc(h, layout)


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

    def _set_layout(self, h: int, layout: Tensor) -> Tensor:
        return self.set_global_layout(h, self.set_sliding_window_layout(h, layout))


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

    def _set_layout(self, h: int, layout: Tensor) -> Tensor:
        return self.set_sliding_window_layout(h, layout)
