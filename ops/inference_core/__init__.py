"""The matrix products of DeepSpeed's core ops for inference, by torch's own.

The first argument of each function is the loaded op; the op's module holds them with that argument bound. The other
functions of the op are its own: their schemas are in ops/csrc/inference_core/inference_core.cpp.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def blas_linear(op: Any, output: Tensor, hidden_states: Tensor, weights: Tensor) -> None:
    """Writes hidden_states @ weights.T to `output`.

    Args:
        op: The loaded op.
        output: [..., out_features].
        hidden_states: [..., in_features].
        weights: [out_features, in_features], of any strides.
    """
    if weights.dim() != 2 or hidden_states.dim() < 1 or weights.shape[1] != hidden_states.shape[-1]:
        raise ValueError(
            f"weights has shape {tuple(weights.shape)} and hidden_states {tuple(hidden_states.shape)}, expected"
            " [out_features, in_features] and [..., in_features]"
        )
    _check_output(output, (*hidden_states.shape[:-1], weights.shape[0]), (hidden_states, weights))
    product = output.view(-1, weights.shape[0])
    torch.mm(hidden_states.reshape(-1, weights.shape[1]), weights.t(), out=product)


def blas_4d_matmul(op: Any, C: Tensor, B: Tensor, A: Tensor) -> None:
    """Writes A @ B to C, for batches of matrices: A [..., N, K], B [..., K, M], C [..., N, M]."""
    if A.dim() < 3 or A.shape[:-2] != B.shape[:-2] or A.shape[-1] != B.shape[-2]:
        raise ValueError(
            f"A has shape {tuple(A.shape)} and B {tuple(B.shape)}, expected [..., N, K] and [..., K, M], with one batch"
        )
    _check_output(C, (*A.shape[:-1], B.shape[-1]), (A, B))
    torch.matmul(A, B, out=C)


def create_handle(op: Any) -> None:
    """Does nothing: torch has its own handles of the vendor's BLAS. DeepSpeed's layers call it first."""


def _check_output(output: Tensor, sizes: tuple[int, ...], inputs: tuple[Tensor, ...]) -> None:
    """Raises ValueError unless the product fits, so that torch does not resize the output."""
    if output.dtype not in DTYPES:
        offered = ", ".join(map(str, DTYPES))
        raise ValueError(f"the output is {output.dtype}, expected one of {offered}: convert the tensors with .float()")
    if tuple(output.shape) != sizes or not output.is_contiguous():
        raise ValueError(
            f"the output has shape {tuple(output.shape)} and strides {output.stride()}, expected a contiguous tensor of"
            f" shape {sizes}"
        )
    for tensor in inputs:
        if tensor.dtype != output.dtype or tensor.device != output.device:
            raise ValueError(
                f"the output is {output.dtype} on {output.device} and an input {tensor.dtype} on {tensor.device},"
                " expected one dtype and device"
            )


def functions(op: Any) -> dict[str, Any]:
    """Returns the Python functions of the loaded op inference_core."""
    return {function.__name__: partial(function, op) for function in (blas_linear, blas_4d_matmul, create_handle)}
