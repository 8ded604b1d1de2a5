"""DeepSpeed's handle: every name and argument of 0.19.8, what calls return, and what goes wrong in them."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from opforge.builders.cpu.async_io import AsyncIOBuilder
from opforge.ops import aio


@pytest.fixture(scope="module")
def op():
    return AsyncIOBuilder().load()


@pytest.fixture(scope="module")
def handle(op):
    return op.aio_handle(
        block_size=1000, queue_depth=3, single_submit=True, overlap_events=True, intra_op_parallelism=2
    )


@pytest.fixture
def data():
    return torch.randint(0, 256, (20_001,), dtype=torch.uint8)


def test_the_options_are_what_was_given(op, handle):
    for opened, values in (
        (handle, (1000, 3, True, True, 2, 1024)),
        (op.aio_handle(), (1 << 20, 128, False, False, 1, 512)),
    ):
        assert values == (
            opened.get_block_size(),
            opened.get_queue_depth(),
            opened.get_single_submit(),
            opened.get_overlap_events(),
            opened.get_intra_op_parallelism(),
            opened.get_alignment(),
        )
    assert isinstance(handle, op.aio_handle)
    with pytest.raises(ValueError, match="block_size=0"):
        op.aio_handle(0)


def test_calls_that_wait(handle, tmp_path, data):
    path, back = str(tmp_path / "file"), torch.zeros_like(data)
    assert handle.write(buffer=data, filename=path, validate=True, file_offset=3) == 0
    assert handle.read(buffer=back, filename=path, validate=True, file_offset=3) == 0
    assert torch.equal(back, data)
    assert handle.sync_pwrite(data.flip(0), path, 0) == 1
    assert handle.sync_pread(buffer=back, filename=path, file_offset=0) == 1
    assert torch.equal(back, data.flip(0))
    assert handle.pwrite(data, path, True, False) == 1
    assert handle.pread(back, path, True, False, 0) == 1
    assert torch.equal(back, data)


def test_what_is_no_tensor(handle, tmp_path, data):
    with pytest.raises(TypeError, match="ndarray, expected a tensor"):
        handle.sync_pwrite(data.numpy(), str(tmp_path / "file"))


def test_calls_that_are_waited_for_later(handle, tmp_path, data):
    paths, back = [str(tmp_path / str(i)) for i in range(3)], [torch.zeros_like(data) for _ in range(3)]
    assert handle.async_pwrite(data, paths[0], 0) == 0
    assert handle.async_pwrite(buffer=data, filename=paths[1], file_offset=5) == 0
    assert handle.pwrite(buffer=data, filename=paths[2], validate=True, file_offset=0, **{"async": True}) == 0
    assert handle.wait() == 3
    assert handle.wait() == 0
    assert handle.async_pread(back[0], paths[0]) == 0
    assert handle.async_pread(buffer=back[1], filename=paths[1], file_offset=5) == 0
    assert handle.pread(back[2], paths[2], False, True) == 0
    assert handle.sync_pread(back[2], paths[2]) == 4
    assert all(torch.equal(tensor, data) for tensor in back)


def test_descriptors(handle, tmp_path, data):
    back = torch.zeros_like(data)
    descriptor = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR | os.O_DIRECT)
    assert handle.async_pwrite(buffer=data, fd=descriptor, file_offset=0) == 0
    assert handle.wait() == 1
    assert handle.async_pread(back, descriptor) == 0
    assert handle.wait() == 1
    assert handle.sync_pwrite(data, descriptor, 1) == 1
    assert handle.pread(back, descriptor, True, False, 1) == 1
    os.close(descriptor)
    assert torch.equal(back, data)
    for wrong in ({}, {"filename": "file", "fd": 3}):
        with pytest.raises(TypeError, match="expected either filename or fd"):
            handle.async_pwrite(data, **wrong)


def test_wait_raises_the_first_error_after_all_calls_have_ended(handle, tmp_path, data):
    handle.async_pread(data, str(tmp_path / "no"))
    handle.async_pwrite(data, str(tmp_path / "file"))
    with pytest.raises(FileNotFoundError, match="no'"):
        handle.wait()
    assert (tmp_path / "file").stat().st_size == len(data)
    assert handle.wait() == 0
    with pytest.raises(TypeError, match=r"expected pread\(buffer, filename, validate, async, file_offset=0\)"):
        handle.pread(data, "file", False)


def test_validation_finds_other_bytes(handle, tmp_path, data, monkeypatch):
    (tmp_path / "file").write_bytes(data.numpy().tobytes())
    (tmp_path / "other").write_bytes(bytes(len(data)))
    from opforge.ops.aio import handle as module

    with pytest.raises(OSError, match="the file and the tensor differ in the 20001 bytes from 0"):
        module._validate(data, str(tmp_path / "other"), 0)
    module._validate(data, str(tmp_path / "file"), 0)


def test_functions_without_a_handle(op, tmp_path, data):
    path, back = str(tmp_path / "file"), torch.zeros_like(data)
    assert op.aio_write(data, path, 4096, 8, False, False, True) == 0
    assert op.aio_read(back, path, 4096, 8, False, True, True) == 0
    assert torch.equal(back, data)
    assert op.deepspeed_memcpy(back, data.flip(0)) == 0
    assert torch.equal(back, data.flip(0))
    with pytest.raises(ValueError, match=r"torch.uint8 of shape \(20001,\) into torch.uint8 of shape \(5,\)"):
        op.deepspeed_memcpy(back[:5], data)


def test_two_threads_use_a_handle(handle, tmp_path, data):
    counts = []

    def work(number):
        for _ in range(50):
            handle.async_pwrite(data, str(tmp_path / str(number)))
            counts.append(handle.wait())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(counts) == 100
    assert all((tmp_path / name).read_bytes() == data.numpy().tobytes() for name in "01")


def test_locked_tensors(op, handle, tmp_path, data):
    locked = handle.new_cpu_locked_tensor(num_elem=len(data), example_tenosr=data)
    assert op.aio_handle(queue_depth=1).is_pinned(locked[5:])
    assert not handle.is_pinned(data)
    locked.copy_(data)
    assert handle.sync_pwrite(locked, str(tmp_path / "file")) == 1
    assert (tmp_path / "file").read_bytes() == data.numpy().tobytes()
    for _ in range(10):
        assert handle.sync_pread(locked.zero_(), str(tmp_path / "file")) == 1
        assert torch.equal(locked, data)
    registered, problem = handle.registered()
    assert registered or problem or aio.report()["io_uring"]
    assert handle.free_cpu_locked_tensor(locked)
    assert not handle.free_cpu_locked_tensor(locked)
    assert not handle.is_pinned(locked)
