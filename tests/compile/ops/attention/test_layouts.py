"""Layouts of block-sparse attention."""

from __future__ import annotations

import random

import pytest
import torch

from opforge.ops import sparse_attention as sparse


def rows(layout, head=0):
    return ["".join(map(str, row)) for row in layout[head].tolist()]


def test_dense_layouts_have_all_blocks():
    assert sparse.DenseSparsityConfig(2).make_layout(48).tolist() == [[[1] * 3] * 3] * 2


def test_fixed_layouts_have_windows_and_blocks_that_all_see():
    config = sparse.FixedSparsityConfig(2, num_local_blocks=2)
    assert rows(config.make_layout(80)) == ["11011", "11011", "01111", "01111", "01011"]
    config = sparse.FixedSparsityConfig(2, num_local_blocks=2, attention="unidirectional")
    assert rows(config.make_layout(80)) == ["10000", "11000", "01100", "01110", "01011"]
    config = sparse.FixedSparsityConfig(
        2, different_layout_per_head=True, num_local_blocks=2, num_different_global_patterns=2
    )
    layout = config.make_layout(64)
    assert rows(layout) == ["1101", "1101", "0111", "0111"]
    assert rows(layout, 1) == ["1110", "1110", "1011", "1011"]


def test_variable_layouts_have_windows_of_several_sizes_and_ranges():
    config = sparse.VariableSparsityConfig(
        1, local_window_blocks=[1, 2], global_block_indices=[3], global_block_end_indices=[9]
    )
    assert rows(config.make_layout(80)) == ["10011", "01111", "01111", "00011", "00011"]
    config = sparse.VariableSparsityConfig(1, num_random_blocks=2, global_block_indices=[7])
    random.seed(1)
    first, second = config.make_layout(96), config.make_layout(96)
    assert not torch.equal(first, second)
    random.seed(1)
    assert torch.equal(first, config.make_layout(96))


def test_sliding_windows():
    config = sparse.LocalSlidingWindowSparsityConfig(1)
    assert rows(config.make_layout(64)) == ["1000", "1100", "0110", "0011"]
    config = sparse.BSLongformerSparsityConfig(1, global_block_indices=[3])
    assert rows(config.make_layout(80)) == ["11010", "11110", "01110", "11111", "00011"]
    config = sparse.BigBirdSparsityConfig(1, num_random_blocks=0, attention="unidirectional")
    assert rows(config.make_layout(64)) == ["1000", "1100", "1110", "1011"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: sparse.DenseSparsityConfig(1).make_layout(40),
            "the sequence has 40 tokens, expected a multiple of the block, 16: pad it",
        ),
        (lambda: sparse.SparsityConfig(1).make_layout(16), "SparsityConfig has no layout: use one of its subclasses"),
        (
            lambda: sparse.FixedSparsityConfig(1, num_local_blocks=3, num_global_blocks=2),
            "num_local_blocks is 3, expected a multiple of num_global_blocks, 2",
        ),
        (
            lambda: sparse.FixedSparsityConfig(1, attention="both"),
            "attention is 'both', expected 'bidirectional' or 'unidirectional'",
        ),
        (
            lambda: sparse.FixedSparsityConfig(1, attention="unidirectional", horizontal_global_attention=True),
            "horizontal_global_attention is True, expected False where attention is 'unidirectional'",
        ),
        (
            lambda: sparse.FixedSparsityConfig(1, num_different_global_patterns=2),
            "num_different_global_patterns is 2, expected 1 where all heads have one layout: pass "
            "different_layout_per_head=True",
        ),
        (
            lambda: sparse.FixedSparsityConfig(1, 16, True, num_different_global_patterns=5),
            "num_different_global_patterns is 5, expected at most 4, num_local_blocks / num_global_blocks",
        ),
        (
            lambda: sparse.VariableSparsityConfig(1, local_window_blocks=[4, 0]),
            "local_window_blocks is [4, 0], expected one number or more, each of them 1 or more",
        ),
        (
            lambda: sparse.VariableSparsityConfig(1, global_block_indices=[1, 2], global_block_end_indices=[2]),
            "global_block_end_indices has 1 numbers, expected 2, as global_block_indices has",
        ),
        (
            lambda: sparse.BSLongformerSparsityConfig(1, global_block_indices=[2], global_block_end_indices=[2]),
            "a range of global blocks is 2 to 2, expected an end after its start",
        ),
        (
            lambda: sparse.BigBirdSparsityConfig(1).make_layout(32),
            "num_sliding_window_blocks is 3, expected at most 2, the blocks of the sequence",
        ),
    ],
)
def test_wrong_options_are_rejected(call, message):
    with pytest.raises((ValueError, NotImplementedError)) as caught:
        call()
    assert str(caught.value) == message
