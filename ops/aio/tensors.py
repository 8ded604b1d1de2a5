"""The tensor of a request: its checks, the offsets of its rows, and the storage that is kept alive."""

from __future__ import annotations

import contextlib
from operator import index
from typing import Any


def check(torch: Any, tensor: Any) -> None:
    """Raises TypeError or ValueError unless the bytes of a tensor are one block of the CPU's memory, in order."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{type(tensor).__name__}, expected a tensor")
    if tensor.device.type != "cpu":
        raise ValueError(f"a tensor on {tensor.device}: expected one on the CPU; copy it there, or from there")
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError("a tensor whose memory is not its value: pass its resolve_conj().resolve_neg()")
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} that is not contiguous: pass its contiguous()")


def offsets(torch: Any, tensor: Any, offset: Any) -> tuple[Any, int, int]:
    """Returns the rows' offsets, the end of the last one in the file, and the bytes of a row. Raises ValueError."""
    if isinstance(offset, torch.Tensor):
        if offset.dtype != torch.int64 or offset.dim() != 1 or tensor.dim() < 1 or len(offset) != len(tensor):
            raise ValueError(
                f"offset is a tensor of {offset.dtype} and shape {tuple(offset.shape)}: expected int64 and one number "
                f"for each row of a tensor of shape {tuple(tensor.shape)}"
            )
        rows = offset.contiguous().cpu()
        row_bytes = tensor.nbytes // max(1, len(tensor))
        least, most = (int(rows.min()), int(rows.max())) if len(rows) else (0, 0)
    else:
        least = most = index(offset)
        row_bytes = tensor.nbytes
        if most + row_bytes < 1 << 63 and least >= 0:
            rows = torch.tensor([most], dtype=torch.int64, device="cpu")
    if least < 0:
        raise ValueError(f"offset {least}: expected 0 or more")
    if most + row_bytes >= 1 << 63:
        raise ValueError(f"offset {most}: the end is beyond the largest file")
    return rows, most + row_bytes, row_bytes


def freeze(torch: Any, tensor: Any) -> None:
    """Makes the storage one that cannot be resized: that would free the memory that the kernel still uses.

    Without numpy, which torch does not require, there is no way to do so.
    """
    storage = tensor.untyped_storage()
    if storage.resizable():
        own = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage, 0, (0,), (1,))
        with contextlib.suppress(RuntimeError):  # Numpy is not available
            own.numpy()  # torch's own way to the flag
