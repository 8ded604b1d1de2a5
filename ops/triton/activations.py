"""GELU and SwiGLU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opforge.builders.triton import activations as builders
from opforge.builders.triton_op_builder.launching import Kernels

from . import registry

GELU, SWIGLU = builders.TritonGeluBuilder.name, builders.TritonSwigluBuilder.name
MOST_BLOCKS = 65535
"""The most blocks of a row in one launch: CUDA's limit of the second dimension of a grid."""
FORMS = {"none": "erf", "tanh": "tanh"}


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


def bind(kernels: Kernels) -> dict[str, Any]:
    """Makes the op's functions launch these kernels from now on, and returns the functions by name."""
    registry.bind(kernels)
    return {"gelu": gelu} if kernels.op == GELU else {"swiglu": swiglu}


def _launch_gelu(direction: str, approximate: str, tensors: dict[str, Tensor]) -> Tensor:
    registry.check_same(GELU, tensors)
    flat = [tensor.contiguous() for tensor in tensors.values()]
    dtype, out = registry.dtype_name(GELU, flat[0]), torch.empty_like(flat[0])
    if approximate not in FORMS:
        raise ValueError(f"{GELU}: approximate is {approximate!r}, expected 'none' or 'tanh'")
    aligned = all(tensor.data_ptr() % 16 == 0 for tensor in (*flat, out))
    name = f"{direction}_{FORMS[approximate]}_{dtype}_{'aligned' if aligned else 'any'}"
    grid = (-(-out.numel() // builders.BLOCK), 1, 1)
    if out.numel():
        registry.kernels_of(GELU, "TritonGeluBuilder").launch(name, grid, *flat, out, out.numel())
    return out


def _gelu_forward(x: Tensor, approximate: str) -> Tensor:
    return _launch_gelu("forward", approximate, {"x": x})


def _gelu_backward(dy: Tensor, x: Tensor, approximate: str) -> Tensor:
    return _launch_gelu("backward", approximate, {"the gradient": dy, "x": x})


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
    kernels = registry.kernels_of(SWIGLU, "TritonSwigluBuilder")
    name, each = f"{direction}_{dtype}_{size.name}", MOST_BLOCKS * size.block
    if columns <= each:
        kernels.launch(name, (count, -(-columns // size.block), 1), *rows, columns, *strides)
        return out
    for start in range(0, columns, each):
        parts = [registry.as_rows(matrix)[:, start : start + each] for matrix in rows]
        width = parts[0].shape[1]
        kernels.launch(name, (count, -(-width // size.block), 1), *parts, width, *strides)
    return out


def _swiglu_forward(gate: Tensor, up: Tensor) -> Tensor:
    return _launch_swiglu("forward", {"gate": gate, "up": up}, 1)[0]


def _swiglu_backward(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    dgate, dup = _launch_swiglu("backward", {"the gradient": dy, "gate": gate, "up": up}, 2)
    return dgate, dup


def _fake(x: Tensor, *_others: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _fake_two(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return _fake(gate), _fake(up)


_gelu = registry.define("gelu(Tensor x, str approximate) -> Tensor", _gelu_forward, _fake)
_gelu_call = registry.direct(_gelu, _gelu_forward)
_gelu_gradient = registry.define("gelu_backward(Tensor dy, Tensor x, str approximate) -> Tensor", _gelu_backward, _fake)
_swiglu = registry.define("swiglu(Tensor gate, Tensor up) -> Tensor", _swiglu_forward, _fake)
_swiglu_call = registry.direct(_swiglu, _swiglu_forward)
_swiglu_gradient = registry.define(
    "swiglu_backward(Tensor dy, Tensor gate, Tensor up) -> (Tensor, Tensor)", _swiglu_backward, _fake_two
)


def _save_gelu(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.approximate = inputs[1]


def _gelu_autograd(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    return _gelu_gradient(dy, *ctx.saved_tensors, ctx.approximate), None


def _save_swiglu(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _swiglu_autograd(ctx: Any, dy: Tensor) -> Any:
    return _swiglu_gradient(dy, *ctx.saved_tensors)


torch.library.register_autograd(_gelu, _gelu_autograd, setup_context=_save_gelu, lib=registry.LIBRARY)
torch.library.register_autograd(_swiglu, _swiglu_autograd, setup_context=_save_swiglu, lib=registry.LIBRARY)
