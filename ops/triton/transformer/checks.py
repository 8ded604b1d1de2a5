"""Checks of the tensors of these ops before a kernel is launched."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from opforge.ops.triton import registry


def check_like(op: str, first: str, tensors: dict[str, Tensor], columns: dict[str, Tensor]) -> str:
    """Returns the name of the dtype. Raises ValueError or TypeError unless the tensors fit the one named `first`.

    Args:
        op: The op, for messages.
        first: The name of the tensor that gives shape, dtype and device.
        tensors: Contiguous tensors of its shape.
        columns: Tensors with a number for each element of its last dimension.
    """
    like = tensors[first]
    dtype = registry.dtype_name(op, like)
    if like.dim() == 0:
        raise ValueError(f"{op}: {first} has no dimension, expected channels as the last one")
    registry.check_count(op, "the length of a row", like.shape[-1])
    for name, tensor in (*tensors.items(), *columns.items()):
        shape = like.shape[-1:] if name in columns else like.shape
        if tensor.shape != shape:
            raise ValueError(f"{op}: {name} has shape {tuple(tensor.shape)}, expected {tuple(shape)}, as {first} has")
        if tensor.dtype != like.dtype or tensor.device != like.device:
            has, expected = f"{tensor.dtype} on {tensor.device}", f"{like.dtype} on {like.device}"
            raise TypeError(f"{op}: {name} is {has}, expected {expected}, as {first}: convert it with .to()")
        if not tensor.is_contiguous():
            raise ValueError(f"{op}: {name} has strides {tensor.stride()}, expected a contiguous tensor")
    return dtype


def form(columns: int, tensors: Sequence[Tensor]) -> str:
    """Returns which kernel these tensors with rows of so many elements use: aligned, or any."""
    fits = columns % 16 == 0 and all(tensor.data_ptr() % 16 == 0 for tensor in tensors)
    return "aligned" if fits else "any"
