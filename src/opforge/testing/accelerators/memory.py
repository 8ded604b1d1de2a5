"""Tests of every accelerator's memory functions: figures in bytes, peaks, and page-locked host memory."""

from __future__ import annotations

import torch

from .tested import AcceleratorTests

SIZES = (
    "memory_allocated",
    "max_memory_allocated",
    "memory_cached",
    "max_memory_cached",
    "memory_reserved",
    "max_memory_reserved",
    "total_memory",
    "available_memory",
)
RESETS = ("reset_max_memory_allocated", "reset_max_memory_cached", "reset_peak_memory_stats")
PEAK, CURRENT = "allocated_bytes.all.peak", "allocated_bytes.all.current"


class MemoryTests(AcceleratorTests):
    """The tests of memory."""

    def test_sizes_are_whole_bytes(self) -> None:
        for name in SIZES:
            for index in (None, 0):
                size = getattr(self.accelerator, name)(index)
                assert type(size) is int and size >= 0, (
                    f"{name}({index}) is {size!r}, expected an int of at least 0: callers compare and subtract sizes"
                )

    def test_memory_figures_agree(self) -> None:
        free, total = self.accelerator.mem_get_info()
        assert type(free) is int and type(total) is int, (
            f"mem_get_info() is ({free!r}, {total!r}), expected two ints: a float loses bytes above 2**53"
        )
        assert 0 <= free <= total, (
            f"mem_get_info() is ({free}, {total}), expected at most the total to be free: batch sizes follow from it"
        )
        whole = self.accelerator.total_memory()
        assert total == whole, (
            f"mem_get_info() has a total of {total}, expected total_memory(), {whole}: it is one figure"
        )
        stats = self.accelerator.memory_stats()
        assert type(stats[CURRENT]) is int, f"memory_stats()[{CURRENT!r}] is {stats[CURRENT]!r}, expected an int"
        assert stats[PEAK] >= stats[CURRENT], (
            f"memory_stats() has a peak of {stats[PEAK]} and now {stats[CURRENT]}, expected a peak of at least that:"
            " otherwise it misses what is in use"
        )
        self.accelerator.empty_cache()

    def test_peaks_can_be_reset(self) -> None:
        for name in RESETS:
            for index in (None, 0):
                result = getattr(self.accelerator, name)(index)
                assert result is None, (
                    f"{name}({index}) returned {result!r}, expected None: torch's functions return none"
                )

    def test_pinned_memory_has_the_requested_values_shape_and_dtype(self) -> None:
        accelerator, tensor = self.accelerator, torch.arange(6.0).reshape(2, 3)
        pinned = accelerator.pin_memory(tensor)
        assert torch.equal(pinned, tensor), f"pin_memory() returned {pinned}, expected the values of {tensor}"
        answer = accelerator.is_pinned(pinned)
        assert type(answer) is bool, f"is_pinned() is {answer!r}, expected a bool"
        accelerator.unpin_memory(pinned)
        for options, shape in (({}, (2, 3)), ({"match_shape": False}, (6,))):
            result = accelerator.pin_memory(tensor, make_copy=False, **options).shape
            assert result == shape, (
                f"pin_memory(make_copy=False, {options}) of shape (2, 3) has shape {tuple(result)}, expected {shape}:"
                " the caller fills it by index"
            )
        for arguments, shape in (((2, 3), (2, 3)), (((4,),), (4,)), ((torch.Size([1, 2]),), (1, 2))):
            empty = accelerator.pin_empty(*arguments, dtype=torch.int8)
            assert (empty.shape, empty.dtype) == (shape, torch.int8), (
                f"pin_empty{arguments} has shape {tuple(empty.shape)} and {empty.dtype}, expected {shape} and"
                " torch.int8: it takes a shape as torch.empty does"
            )
        like = accelerator.pin_empty_like(tensor, dtype=torch.float64)
        assert (like.shape, like.dtype) == (tensor.shape, torch.float64), (
            f"pin_empty_like() has shape {tuple(like.shape)} and {like.dtype}, expected (2, 3) and torch.float64"
        )

    def test_host_memory_can_be_registered_and_unregistered(self) -> None:
        tensor = torch.empty(1 << 16, dtype=torch.uint8)
        alignment = self.accelerator.pin_memory_alignment()
        assert type(alignment) is int and alignment >= 1, (
            f"pin_memory_alignment() is {alignment!r}, expected an int of at least 1: addresses are rounded up to it"
        )
        address = -(-tensor.data_ptr() // alignment) * alignment
        answer = self.accelerator.register_host_memory(address, 1 << 12)
        assert type(answer) is bool, (
            f"register_host_memory() is {answer!r}, expected whether it was registered: callers pin a copy otherwise"
        )
        self.accelerator.unregister_host_memory(address)
