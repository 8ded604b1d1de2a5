"""Ops that compute nothing: files, and views of bytes."""

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
