"""Tensors as bytes, without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast, overload

if TYPE_CHECKING:
    from torch import Tensor


@overload
def cast_to_byte_tensor(op: Any, src_tensor: Tensor) -> Tensor: ...
@overload
def cast_to_byte_tensor(op: Any, src_tensor: Sequence[Tensor]) -> list[Tensor]: ...
def cast_to_byte_tensor(op: Any, src_tensor: Tensor | Sequence[Tensor]) -> Tensor | list[Tensor]:
    """Returns the bytes of a tensor, or of each tensor of a sequence, as one-dimensional uint8 tensors.

    They are views: they share the memory and keep it. The bytes are in the order in which they lie in memory, whatever
    the order of the dimensions. A tensor of one byte or less is returned as it is, as DeepSpeed's function does.

    Raises:
        TypeError: Something is not a tensor.
        ValueError: The elements do not fill one block of memory, or have none (sparse and quantized tensors).
    """
    import torch

    if isinstance(src_tensor, (list, tuple)):
        return [_bytes_of(torch, op, tensor) for tensor in src_tensor]
    return _bytes_of(torch, op, src_tensor)


def _bytes_of(torch: Any, op: Any, tensor: Any) -> Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"cast_to_byte_tensor: {type(tensor).__name__}, expected a tensor or a list of tensors")
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = "a quantized tensor" if tensor.is_quantized else f"a tensor of layout {tensor.layout}"
        raise ValueError(f"cast_to_byte_tensor: {kind}, expected a dense one: pass its parts, such as values()")
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError("cast_to_byte_tensor: the tensor's memory is not its value: pass resolve_conj().resolve_neg()")
    if tensor.nbytes <= 1:
        return cast("Tensor", tensor)
    if tensor.is_contiguous():  # the usual case takes a quarter of the time
        return cast("Tensor", tensor.detach().view(-1).view(torch.uint8))
    numbers = torch.tensor([tensor.shape, tensor.stride()], dtype=torch.int64, device="cpu")
    if not op.is_one_block(tensor.dim(), numbers[0].data_ptr(), numbers[1].data_ptr()):
        raise ValueError(
            f"cast_to_byte_tensor: strides {tensor.stride()} for shape {tuple(tensor.shape)} leave gaps or overlap: "
            "pass contiguous()"
        )
    dense = tensor.detach().as_strided((tensor.numel(),), (1,))
    return cast("Tensor", dense.view(torch.uint8))


def functions(op: Any) -> dict[str, Any]:
    """Returns the op's Python functions."""
    return {"cast_to_byte_tensor": partial(cast_to_byte_tensor, op)}
