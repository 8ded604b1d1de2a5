"""Buffers for the descriptions of ragged batches: DeepSpeed's functions.

The first argument of each function is the loaded op; the op's module holds them with that argument bound. Views keep
the memory of their buffer, which DeepSpeed's do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from opforge.ops import pinned


def allocate_fast_host_buffer(op: Any, device_mirror: Tensor) -> Tensor:
    """Returns zeros of the shape and dtype of a tensor in locked memory. Raises OSError if it cannot be locked."""
    return pinned.new(op, device_mirror.numel(), device_mirror.dtype).view(device_mirror.shape)


def allocate_view_on(op: Any, tensor: Tensor, buffer: Tensor, offset: int) -> Tensor:
    """Returns a view of the buffer's bytes from `offset` on, with the shape, strides and dtype of `tensor`."""
    return _view(tensor.shape, tensor.stride(), tensor.dtype, buffer, offset)


def allocate_view_like(
    op: Any, shape: Sequence[int], strides: Sequence[int], dummy_tensor: Tensor, buffer: Tensor, offset: int
) -> Tensor:
    """Returns a view of the buffer's bytes from `offset` on, with that shape and strides, and the dummy's dtype."""
    return _view(shape, strides, dummy_tensor.dtype, buffer, offset)


def _view(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, buffer: Tensor, offset: int) -> Tensor:
    size = dtype.itemsize
    if len(shape) != len(strides) or any(number < 0 for number in (*shape, *strides)):
        raise ValueError(f"shape is {tuple(shape)} and strides {tuple(strides)}, expected as many, none negative")
    last = sum((count - 1) * stride for count, stride in zip(shape, strides, strict=True))
    end = offset + (size * (last + 1) if 0 not in shape else 0)
    if not buffer.is_contiguous() or offset < 0 or end > buffer.nbytes:
        raise ValueError(
            f"the view ends at byte {end}, expected bytes of the contiguous buffer's {buffer.nbytes}, from 0 on"
        )
    begin = buffer.storage_offset() * buffer.itemsize + offset
    if begin % size:
        raise ValueError(f"offset is {offset}, expected a multiple of the {size} bytes of {dtype}")
    storage = buffer.untyped_storage()
    return torch.empty(0, dtype=dtype, device=buffer.device).set_(storage, begin // size, tuple(shape), tuple(strides))


def functions(op: Any) -> dict[str, Any]:
    """Returns the Python functions of the loaded op."""
    bound = (allocate_fast_host_buffer, allocate_view_on, allocate_view_like)
    return {function.__name__: partial(function, op) for function in bound}
