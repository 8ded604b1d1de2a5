"""Buffers of ragged batches, with DeepSpeed's arguments."""

import gc

import pytest
import torch

from opforge.builders.cpu.transformer.ragged_ops import RaggedUtilsBuilder
from opforge.ops import pinned

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]


@pytest.fixture(scope="module")
def op():
    return RaggedUtilsBuilder().load()


@pytest.mark.parametrize("shape", [(), (0,), (15, 17), (4097,)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float16])
def test_a_host_buffer_is_locked(op, shape, dtype):
    buffer = op.allocate_fast_host_buffer(torch.ones(shape, dtype=dtype))
    assert buffer.shape == shape and buffer.dtype == dtype and not buffer.any()
    assert pinned.is_pinned(buffer) or not buffer.numel()


def test_views_share_the_buffers_memory_and_keep_it(op):
    buffer = torch.zeros(64, dtype=torch.uint8)
    tensor = torch.arange(6, dtype=torch.int32).view(2, 3).t()
    view = op.allocate_view_on(tensor, buffer, 8)
    assert view.shape == (3, 2) and view.stride() == tensor.stride() and view.dtype == torch.int32
    view.copy_(tensor)
    assert buffer[8:32].view(torch.int32).tolist() == [0, 1, 2, 3, 4, 5]
    part = op.allocate_view_like((2,), (2,), torch.empty(0, dtype=torch.int32), buffer[4:], 4)
    assert part.tolist() == [0, 2]
    del buffer, view
    gc.collect()
    assert part.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda op, b: op.allocate_view_on(torch.zeros(4), b, 4),
            "the view ends at byte 20, expected bytes of the cont",
        ),
        (lambda op, b: op.allocate_view_on(torch.zeros(1), b, 2), "offset is 2, expected a multiple of the 4 bytes of"),
        (
            lambda op, b: op.allocate_view_on(torch.zeros(1), b, -4),
            "the view ends at byte 0, expected bytes of the con",
        ),
        (
            lambda op, b: op.allocate_view_like((2, 2), (1,), b, b, 0),
            r"shape is \(2, 2\) and strides \(1,\), expected as",
        ),
    ],
)
def test_views_outside_of_the_buffer_are_refused(op, call, message):
    with pytest.raises(ValueError, match=message):
        call(op, torch.zeros(16, dtype=torch.uint8))
