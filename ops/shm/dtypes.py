"""The numbers by which the kernels know dtypes and operations, and the memory of a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

REDUCED = (
    *("float64", "float32", "bfloat16", "float16"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"),
)
"""In the order of DType in ops/csrc/shm/reduce.h."""
MOVED = (
    *("complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
)
"""The dtypes that are copied as bytes and not reduced."""
NAMES = (*REDUCED, *MOVED)
CODES = {getattr(torch, name): code for code, name in enumerate(NAMES) if hasattr(torch, name)}
OPERATIONS = ("sum", "product", "min", "max", "average", "and", "or", "xor")
"""In the order of Op in ops/csrc/shm/reduce.h."""
OPERATION_CODES = {name: code for code, name in enumerate(OPERATIONS)}


def code(tensor: Tensor) -> int:
    """Returns the number of a tensor's dtype. Raises TypeError if there is none."""
    try:
        return CODES[tensor.dtype]
    except KeyError:
        raise TypeError(f"a tensor of {tensor.dtype}: expected one of {', '.join(NAMES)}") from None


def check(tensor: Tensor) -> None:
    """Raises TypeError or ValueError unless the value is a dense tensor of the CPU."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{type(tensor).__name__}, expected a tensor")
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        kind = f"a tensor on {tensor.device}" if not tensor.is_cpu else f"a tensor of layout {tensor.layout}"
        raise ValueError(f"{kind}: expected a dense one on the CPU")


def memory(tensor: Tensor) -> Tensor:
    """Returns the tensor itself if its elements lie in order without gaps, otherwise a copy that does.

    Raises what `check` raises.
    """
    check(tensor)
    if tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def result(tensor: Tensor) -> Tensor:
    """Returns memory for the result that `tensor` gets: the tensor itself, or new memory if it has gaps.

    Raises what `check` raises, and ValueError if several elements of the tensor are one, as after `expand`.
    """
    check(tensor)
    if tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        return tensor
    if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        raise ValueError(f"a result of shape {tuple(tensor.shape)} and strides {tensor.stride()}: elements overlap")
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def finish(tensor: Tensor, data: Tensor) -> None:
    """Copies a result from the memory that `memory` or `result` returned, if that is not the tensor's own."""
    if data is not tensor:
        tensor.detach().copy_(data)
