"""Ops that compute nothing: files, locked memory, and views of bytes."""

from __future__ import annotations

import os
import tempfile

import torch

from .form import Check


class AsyncIOCheck(Check):
    """Asynchronous files."""

    def test_what_was_written_is_read_back(self) -> None:
        written = torch.randint(0, 256, (3 * 4096 + 17,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "file")
            handle = self.loaded.aio_handle()
            handle.sync_pwrite(written, path)
            with open(path, "rb") as file:
                assert file.read() == written.numpy().tobytes(), "the file has other bytes than the tensor"
            read = torch.zeros_like(written)
            handle.sync_pread(read, path)
        assert torch.equal(read, written), "other bytes were read than were written"


class ByteTensorCheck(Check):
    """Tensors as bytes."""

    def test_bytes_are_a_view_of_the_tensor(self) -> None:
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            tensor = torch.zeros(6, 4, dtype=dtype)
            view = self.loaded.cast_to_byte_tensor(tensor)
            assert view.dtype == torch.uint8 and view.numel() == tensor.nbytes, f"{view.dtype}, {view.numel()} bytes"
            assert view.data_ptr() == tensor.data_ptr(), "the bytes are a copy"


class PinMemoryCheck(Check):
    """Tensors in locked memory."""

    def test_memory_is_zero_and_locked_until_it_is_freed(self) -> None:
        handle, before = self.loaded.pin_handle(), _locked()
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            tensor = handle.new_cpu_locked_tensor(5000, torch.empty(0, dtype=dtype))
            assert tensor.dtype == dtype and tensor.shape == (5000,), f"{tensor.dtype} {tuple(tensor.shape)}"
            assert not tensor.any() and handle.is_pinned(tensor), f"{dtype}: the memory is not zero, or not locked"
            kernels = _locked() - before
            assert kernels >= tensor.nbytes, f"the kernel has locked {kernels} bytes, expected {tensor.nbytes}"
            assert handle.free_cpu_locked_tensor(tensor), "the memory is not the handle's"
        assert _locked() == before, f"{_locked() - before} bytes are still locked"


class HostBufferCheck(Check):
    """Host buffers in locked memory, and views of buffers, against torch's own views."""

    def test_a_buffer_is_like_its_tensor_and_locked(self) -> None:
        before, mirror = _locked(), torch.ones(3, 5, dtype=torch.int32)
        buffer = self.loaded.allocate_fast_host_buffer(mirror)
        assert buffer.shape == mirror.shape and buffer.dtype == mirror.dtype and not buffer.any()
        assert _locked() - before >= buffer.nbytes, "the buffer is not locked"

    def test_a_view_has_the_bytes_at_its_offset(self) -> None:
        buffer = torch.arange(64, dtype=torch.uint8)
        expected = buffer[8:32].view(torch.int32).view(2, 3)
        view = self.loaded.allocate_view_on(torch.empty(2, 3, dtype=torch.int32), buffer, 8)
        assert torch.equal(view, expected) and view.data_ptr() == buffer.data_ptr() + 8, "the view has other bytes"
        like = self.loaded.allocate_view_like((3, 2), (1, 3), torch.empty(0, dtype=torch.int32), buffer, 8)
        assert torch.equal(like, expected.t()), "the view has other strides"


def _locked() -> int:
    """Returns how many bytes the kernel has locked for this process."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmLck:"))
