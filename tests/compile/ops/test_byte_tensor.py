"""Tensors as bytes: views of any dtype and order of dimensions, and what has no bytes of its own."""

from __future__ import annotations

import gc

import pytest
import torch

from opforge.builders.cpu.byte_tensor import UtilsBuilder


@pytest.fixture(scope="module")
def cast():
    return UtilsBuilder().load().cast_to_byte_tensor


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e5m2]
)
def test_bytes_are_a_view_that_keeps_the_memory(cast, dtype):
    tensor = torch.zeros(6, 4, dtype=dtype)
    view = cast(tensor[2:])
    assert (view.dtype, view.shape) == (torch.uint8, (16 * dtype.itemsize,))
    assert view.data_ptr() == tensor[2:].data_ptr()
    view[0] = 1
    assert tensor[2, 0] != 0
    del tensor
    gc.collect()
    assert view.sum() == 1


def test_any_order_of_dimensions_gives_the_memory_s_order(cast):
    tensor = torch.arange(24, dtype=torch.int16).view(2, 3, 4).permute(2, 0, 1)
    assert torch.equal(cast(tensor).view(torch.int16), torch.arange(24, dtype=torch.int16))
    image = torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert torch.equal(cast(image).view(torch.float32), image.permute(0, 2, 3, 1).reshape(-1))


def test_a_list_gives_a_list(cast):
    views = cast(src_tensor=[torch.ones(2), torch.zeros(0, 3), torch.ones((), dtype=torch.int8)])
    assert [len(view.shape) and view.numel() for view in views] == [8, 0, 0]
    assert cast(torch.ones(2, requires_grad=True)).requires_grad is False


@pytest.mark.parametrize(
    ("tensor", "problem"),
    [
        (torch.ones(4, 4)[:, :2], r"strides \(4, 1\) for shape \(4, 2\) leave gaps or overlap: pass contiguous"),
        (torch.ones(3).expand(2, 3), "leave gaps or overlap"),
        (torch.eye(3).to_sparse(), "a tensor of layout torch.sparse_coo, expected a dense one"),
        (torch.ones(2, dtype=torch.complex64).conj(), "resolve_conj"),
    ],
)
def test_what_is_no_block_of_memory(cast, tensor, problem):
    with pytest.raises(ValueError, match=problem):
        cast(tensor)
    with pytest.raises(ValueError, match=problem):
        cast([torch.ones(2), tensor])


def test_what_is_no_tensor(cast):
    with pytest.raises(TypeError, match="int, expected a tensor or a list of tensors"):
        cast([3])
