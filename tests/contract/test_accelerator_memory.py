"""What every accelerator guarantees of memory: figures in bytes, peaks, and page-locked host memory."""

from __future__ import annotations

import pytest
import torch

BYTES = [
    "memory_allocated",
    "max_memory_allocated",
    "memory_cached",
    "max_memory_cached",
    "memory_reserved",
    "max_memory_reserved",
    "total_memory",
    "available_memory",
]
RESETS = ["reset_max_memory_allocated", "reset_max_memory_cached", "reset_peak_memory_stats"]


@pytest.mark.parametrize("index", [None, 0])
def test_sizes_are_whole_bytes(accelerator, index):
    for name in BYTES:
        size = getattr(accelerator, name)(index)
        assert type(size) is int and size >= 0, name


def test_memory_figures_agree(accelerator):
    free, total = accelerator.mem_get_info()
    assert type(free) is int and type(total) is int and 0 <= free <= total == accelerator.total_memory()
    stats = accelerator.memory_stats()
    assert type(stats["allocated_bytes.all.current"]) is int
    assert stats["allocated_bytes.all.peak"] >= stats["allocated_bytes.all.current"]
    assert accelerator.max_memory_allocated() >= 0
    accelerator.empty_cache()


@pytest.mark.parametrize("index", [None, 0])
def test_peaks_can_be_reset(accelerator, index):
    for name in RESETS:
        assert getattr(accelerator, name)(index) is None, name


def test_pinned_memory_has_the_requested_values_shape_and_dtype(accelerator):
    tensor = torch.arange(6.0).reshape(2, 3)
    pinned = accelerator.pin_memory(tensor)
    assert torch.equal(pinned, tensor)
    assert type(accelerator.is_pinned(pinned)) is bool
    accelerator.unpin_memory(pinned)
    assert accelerator.pin_memory(tensor, make_copy=False).shape == (2, 3)
    assert accelerator.pin_memory(tensor, make_copy=False, match_shape=False).shape == (6,)
    assert accelerator.pin_empty(2, 3, dtype=torch.int8).shape == (2, 3)
    assert accelerator.pin_empty((4,), dtype=torch.int8).dtype is torch.int8
    assert accelerator.pin_empty(torch.Size([1, 2]), dtype=torch.int8).shape == (1, 2)
    like = accelerator.pin_empty_like(tensor, dtype=torch.float64)
    assert (like.shape, like.dtype) == (tensor.shape, torch.float64)


def test_host_memory_can_be_registered_and_unregistered(accelerator):
    tensor = torch.empty(1 << 16, dtype=torch.uint8)
    alignment = accelerator.pin_memory_alignment()
    assert type(alignment) is int and alignment >= 1
    address = -(-tensor.data_ptr() // alignment) * alignment
    assert type(accelerator.register_host_memory(address, 1 << 12)) is bool
    assert accelerator.unregister_host_memory(address) is None
