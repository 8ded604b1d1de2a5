"""Locked memory: what the kernel counts, its end with the last view, and limits that are too low."""

from __future__ import annotations

import gc
import os
import resource
import subprocess

import pytest
import torch
from support.processes import forked_python

from opforge.builders.cpu.async_io import AsyncIOBuilder
from opforge.builders.cpu.pin_memory import PinMemoryBuilder
from opforge.ops import pinned

SIZE = 3 << 20


@pytest.fixture(scope="module")
def handle():
    return PinMemoryBuilder().load().pin_handle()


def kernel_bytes():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmLck"))


def new(handle):
    """Returns locked memory; skips the test if the limit is too low for it."""
    try:
        return handle.new_cpu_locked_tensor(SIZE // 2, torch.empty(0, dtype=torch.bfloat16))
    except OSError as error:
        pytest.skip(str(error))


def test_memory_is_locked_and_page_aligned(handle):
    half = new(handle)
    assert (half.dtype, half.shape, half.data_ptr() % 4096) == (torch.bfloat16, (SIZE // 2,), 0)
    assert not half.any()
    assert kernel_bytes() >= pinned.locked_bytes() >= SIZE
    assert handle.is_pinned(half[5:7])
    assert handle.is_pinned(half.view(torch.uint8)[-1:])
    assert not handle.is_pinned(torch.ones(5))


def test_it_is_unlocked_with_the_last_view(handle):
    half = new(handle)
    before = kernel_bytes(), pinned.locked_bytes()
    view = half.view(torch.int32)[3:]
    address = half.data_ptr()
    del half
    gc.collect()
    assert (kernel_bytes(), pinned.locked_bytes()) == before
    view.fill_(7)
    del view
    gc.collect()
    assert pinned.locked_bytes() == before[1] - SIZE
    assert kernel_bytes() == before[0] - SIZE
    assert not handle.free_cpu_locked_tensor_by_ptr(address=address)


def test_small_memory_is_used_again_as_zeros_and_is_not_locked_meanwhile(handle):
    example, before = torch.empty(0, dtype=torch.uint8), (kernel_bytes(), pinned.locked_bytes())
    for free in (handle.free_cpu_locked_tensor, lambda tensor: None, lambda tensor: None):
        tensor = handle.new_cpu_locked_tensor(65536, example)
        assert not tensor.any()
        tensor.fill_(7)
        free(tensor)
        del tensor
        gc.collect()
        assert (kernel_bytes(), pinned.locked_bytes()) == before
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        tensor = handle.new_cpu_locked_tensor(65536, example)
        assert handle.is_pinned(tensor)
        del tensor
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults < 100  # new memory has 16 pages each time
    tensors = [handle.new_cpu_locked_tensor(65536, example) for _ in range(100)]
    del tensors
    assert 65536 < sum(size * len(blocks) for size, blocks in pinned._kept.items()) <= pinned.MOST_KEPT


def test_a_freed_tensor_can_still_be_used(handle):
    half = new(handle)
    assert handle.free_cpu_locked_tensor(locked_tensor=half)
    assert not handle.is_pinned(buffer=half)
    half.fill_(1)
    assert half.sum() == SIZE // 2
    again = handle.new_cpu_locked_tensor(num_elem=3, example_tensor=torch.empty(0, dtype=torch.bool))
    assert handle.free_cpu_locked_tensor_by_ptr(again.data_ptr())


def test_both_ops_have_one_account(handle):
    half = new(handle)
    aio_handle = AsyncIOBuilder().load().aio_handle(queue_depth=1)
    assert aio_handle.is_pinned(half)
    assert aio_handle.free_cpu_locked_tensor(half)
    assert not handle.free_cpu_locked_tensor(half)


def test_numbers_of_elements_that_cannot_be(handle):
    example = torch.empty(0)
    assert handle.new_cpu_locked_tensor(0, example).shape == (0,)
    with pytest.raises(ValueError, match="-1 elements of locked memory: expected 0 or more"):
        handle.new_cpu_locked_tensor(-1, example)
    with pytest.raises(OSError, match="bytes of locked memory: Cannot allocate memory"):
        handle.new_cpu_locked_tensor(1 << 60, example)


def test_a_limit_that_is_too_low_is_named_with_what_to_do():
    if os.geteuid():
        pytest.skip("only root can start a process of another user")
    code = """
import os, resource, torch
from opforge.builders.cpu.pin_memory import PinMemoryBuilder
handle = PinMemoryBuilder().load().pin_handle()
from opforge.ops import aio
aio.Queue().close()
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 1 << 20))
os.setuid(65534)
kept = handle.new_cpu_locked_tensor(8192, torch.empty(0))
queue = aio.Queue()
print(queue.engine, aio.report())
try:
    handle.new_cpu_locked_tensor(8193, torch.empty(0))
except OSError as error:
    print(error)
del kept
handle.new_cpu_locked_tensor(8193, torch.empty(0))
"""
    result = subprocess.run([forked_python.python(), "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert (
        "36864 bytes of memory cannot be locked: this process may lock 65536 bytes (at most 1048576 bytes"
        in result.stdout
    )
    assert "and 32768 bytes are locked, 32768 of them by opforge. Raise the limit (RLIMIT_MEMLOCK)" in result.stdout
