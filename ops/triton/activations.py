"""GELU and SwiGLU."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from opforge.builders.triton import activations as builders
from opforge.builders.triton_op_builder.launching import Grid

from . import registry

GELU, SWIGLU = builders.TritonGeluBuilder.name, builders.TritonSwigluBuilder.name
MOST_BLOCKS = 65535
"""The most blocks of a row in one launch: CUDA's limit of the second dimension of a grid."""
FORMS = {"none": "erf", "tanh": "tanh"}
_GELU_NAMES = {
    (dtype, approximate): (f"forward_{form}_{name}_any", f"forward_{form}_{name}_aligned")
    for dtype, name in registry.DTYPE_NAMES.items()
    for approximate, form in FORMS.items()
}
"""A call's dtype and form -> the kernel for any address, and that for addresses that are multiples of 16."""


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Returns x * P(N(0, 1) < x), by the error function ("none") or approximated by tanh ("tanh"), as torch does.

    The result has x's dtype; arithmetic is in float32. Raises ValueError, TypeError, KernelLaunchError.
    """
    y: Tensor = _gelu_call(x, approximate)
    return y


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Returns gate * sigmoid(gate) * up for tensors of one shape. Arithmetic is in float32.

    The arguments may be the halves of one tensor, which are not copied. Raises ValueError, TypeError,
    KernelLaunchError.
    """
    y: Tensor = _swiglu_call(gate, up)
    return y


bind_gelu = registry.binding({"gelu": gelu})
bind_swiglu = registry.binding({"swiglu": swiglu})


def _launch_gelu(direction: str, approximate: str, tensors: dict[str, Tensor]) -> Tensor:
    registry.check_same(GELU, tensors)
    flat = [tensor.contiguous() for tensor in tensors.values()]
    dtype, out = registry.dtype_name(GELU, flat[0]), torch.empty_like(flat[0])
    if approximate not in FORMS:
        raise ValueError(f"{GELU}: approximate is {approximate!r}, expected 'none' or 'tanh'")
    aligned = all(tensor.data_ptr() % 16 == 0 for tensor in (*flat, out))
    name = f"{direction}_{FORMS[approximate]}_{dtype}_{'aligned' if aligned else 'any'}"
    if count := out.numel():
        registry.kernels_of(builders.TritonGeluBuilder).launch(
            name, lambda constants: (-(-count // constants["BLOCK"]), 1, 1), *flat, out, count
        )
    return out


def _gelu_forward(x: Tensor, approximate: str) -> Tensor:
    names = _GELU_NAMES.get((x.dtype, approximate))
    count = x.numel()
    if names and count and x.is_contiguous():
        y = torch.empty_like(x)
        name = names[not ((x.data_ptr() | y.data_ptr()) & 15)]
        registry.kernels_of(builders.TritonGeluBuilder).launch(
            name, lambda constants: (-(-count // constants["BLOCK"]), 1, 1), x, y, count
        )
        return y
    return _launch_gelu("forward", approximate, {"x": x})


def _launch_swiglu(direction: str, inputs: dict[str, Tensor], outputs: int) -> list[Tensor]:
    registry.check_same(SWIGLU, inputs)
    like = next(iter(inputs.values()))
    if like.dim() == 0:
        raise ValueError(f"{SWIGLU}: gate has no dimension, expected at least one")
    dtype = registry.dtype_name(SWIGLU, like)
    out = [torch.empty_like(like, memory_format=torch.contiguous_format) for _ in range(outputs)]
    if like.numel() == 0:
        return out
    columns, matrices = like.shape[-1], [registry.rows_of(tensor) for tensor in (*inputs.values(), *out)]
    count, size = like.numel() // columns, registry.row_size(builders.SIZES, columns, matrices)
    rows, strides = zip(*matrices, strict=True)
    kernels = registry.kernels_of(builders.TritonSwigluBuilder)
    name, each = f"{direction}_{dtype}_{size.name}", MOST_BLOCKS * size.block
    if columns <= each:
        kernels.launch(name, _swiglu_grid(count, columns), *rows, columns, *strides)
        return out
    for start in range(0, columns, each):
        parts = [registry.as_rows(matrix)[:, start : start + each] for matrix in rows]
        width = parts[0].shape[1]
        kernels.launch(name, _swiglu_grid(count, width), *parts, width, *strides)
    return out


def _swiglu_grid(rows: int, columns: int) -> Grid:
    return lambda constants: (rows, -(-columns // constants["BLOCK"]), 1)


@functools.lru_cache(maxsize=registry.PLANS)
def _plan(dtype: torch.dtype, shape: torch.Size, *strides: tuple[int, ...]) -> tuple[registry.RowPlan, Grid] | None:
    name = registry.DTYPE_NAMES.get(dtype)
    plan = registry.row_plan(f"forward_{name}", builders.SIZES, shape, strides) if name else None
    return None if plan is None else (plan, _swiglu_grid(plan.rows, plan.columns))


def _swiglu_forward(gate: Tensor, up: Tensor) -> Tensor:
    shape, dtype = gate.shape, gate.dtype
    if up.shape == shape and up.dtype is dtype and up.device == gate.device:
        found = _plan(dtype, shape, gate.stride(), up.stride())
        if found and shape[-1] <= MOST_BLOCKS * builders.BLOCK:
            plan, grid = found
            y, columns = torch.empty_like(gate, memory_format=torch.contiguous_format), plan.columns
            is_aligned = not ((gate.data_ptr() | up.data_ptr() | y.data_ptr()) & 15)
            registry.kernels_of(builders.TritonSwigluBuilder).launch(
                plan.names[is_aligned], grid, gate, up, y, columns, *plan.strides, columns
            )
            return y
    return _launch_swiglu("forward", {"gate": gate, "up": up}, 1)[0]


def _swiglu_backward(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    dgate, dup = _launch_swiglu("backward", {"the gradient": dy, "gate": gate, "up": up}, 2)
    return dgate, dup


def _fake(x: Tensor, *_others: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


_gelu = registry.define("gelu(Tensor x, str approximate) -> Tensor", _gelu_forward, _fake)
_gelu_gradient = registry.define_gradient(
    "gelu_backward(Tensor dy, Tensor x, str approximate) -> Tensor",
    lambda dy, x, approximate: _launch_gelu("backward", approximate, {"the gradient": dy, "x": x}),
    _fake,
)
_swiglu = registry.define("swiglu(Tensor gate, Tensor up) -> Tensor", _swiglu_forward, _fake)
_swiglu_gradient = registry.define_gradient(
    "swiglu_backward(Tensor dy, Tensor gate, Tensor up) -> (Tensor, Tensor)",
    _swiglu_backward,
    lambda dy, gate, up: (_fake(gate), _fake(up)),
)


def _save_gelu(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.approximate = inputs[1]


def _gelu_autograd(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    return _gelu_gradient(dy, *ctx.saved_tensors, ctx.approximate), None


def _save_swiglu(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


_gelu_call = registry.differentiable(_gelu, _gelu_forward, _save_gelu, _gelu_autograd)
_swiglu_call = registry.differentiable(
    _swiglu, _swiglu_forward, _save_swiglu, lambda ctx, dy: _swiglu_gradient(dy, *ctx.saved_tensors)
)
