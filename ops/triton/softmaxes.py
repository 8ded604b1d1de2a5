"""Softmax of the last dimension."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from opforge.builders.triton.softmax import SIZES, TritonSoftmaxBuilder

from . import registry

OP = TritonSoftmaxBuilder.name


def softmax(x: Tensor) -> Tensor:
    """Returns exp(x) / sum(exp(x)) over the last dimension, in x's dtype. Arithmetic is in float32.

    Raises ValueError, TypeError, KernelLaunchError.
    """
    y: Tensor = _call(x)
    return y


bind = registry.binding({"softmax": softmax})


def _launch(direction: str, tensors: dict[str, Tensor]) -> Tensor:
    """Launches a kernel over matrices of one shape. Returns the output, which has that shape too."""
    registry.check_same(OP, tensors)
    like = next(iter(tensors.values()))
    columns = like.shape[-1]
    registry.check_count(OP, "the length of a row", columns)
    dtype, out = registry.dtype_name(OP, like), torch.empty_like(like, memory_format=torch.contiguous_format)
    if like.numel() == 0:
        return out
    matrices = [registry.rows_of(tensor) for tensor in (*tensors.values(), out)]
    name = f"{direction}_{dtype}_{registry.row_size(SIZES[direction], columns, matrices).name}"
    rows, strides = zip(*matrices, strict=True)
    registry.kernels_of(TritonSoftmaxBuilder).launch(name, (like.numel() // columns, 1, 1), *rows, columns, *strides)
    return out


@functools.lru_cache(maxsize=registry.PLANS)
def _plan(dtype: torch.dtype, shape: torch.Size, strides: tuple[int, ...]) -> registry.RowPlan | None:
    name = registry.DTYPE_NAMES.get(dtype)
    return registry.row_plan(f"forward_{name}", SIZES["forward"], shape, (strides,)) if name else None


def _forward(x: Tensor) -> Tensor:
    if plan := _plan(x.dtype, x.shape, x.stride()):
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        columns = plan.columns
        is_aligned = not ((x.data_ptr() | y.data_ptr()) & 15)
        registry.kernels_of(TritonSoftmaxBuilder).launch(
            plan.names[is_aligned], (plan.rows, 1, 1), x, y, columns, *plan.strides, columns
        )
        return y
    if x.dim() == 0:
        raise ValueError(f"{OP}: x has no dimension, expected at least one")
    return _launch("forward", {"x": x})


def _backward(dy: Tensor, y: Tensor) -> Tensor:
    return _launch("backward", {"the gradient": dy, "y": y})


def _fake(x: Tensor, *_others: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


_softmax = registry.define("softmax(Tensor x) -> Tensor", _forward, _fake)
_gradient = registry.define_gradient("softmax_backward(Tensor dy, Tensor y) -> Tensor", _backward, _fake)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output)


_call = registry.differentiable(_softmax, _forward, _save, lambda ctx, dy: _gradient(dy, *ctx.saved_tensors))
