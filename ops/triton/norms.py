"""Layer norm and RMS norm over the last dimension. Gradients have the same bits each time."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from opforge.builders.triton import norms as builders
from opforge.builders.triton_op_builder.launching import Kernels

from . import devices, registry

LAYER, RMS = builders.TritonLayerNormBuilder.name, builders.TritonRMSNormBuilder.name
PROGRAMS = {1024: 7, 4096: 4, 8192: 2, 16384: 1}
"""Block size -> programs of the backward kernel per multiprocessor.

Each program writes a row of partial sums, so there should be few: as many as run at once, or twice as many, since a
small remainder would run alone. Registers limit what runs at once: a multiprocessor holds 7 programs of 128 threads
with 72 registers each, but only 2 of 256 threads, or 1 of 512, with 122 registers."""


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """Returns x / sqrt(mean(x^2) + eps) * weight over the last dimension, in x's dtype. Arithmetic is in float32.

    `weight` has the size of the last dimension and is float32, bfloat16 or float16; None means ones. Raises
    ValueError, TypeError, KernelLaunchError.
    """
    y: Tensor = _rms_call(x, _ones(x) if weight is None else weight, eps)[0]
    return y


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Returns (x - mean) / sqrt(variance + eps) * weight + bias over the last dimension, in x's dtype.

    Arithmetic is in float32. `weight` and `bias` have the size of the last dimension and are float32, bfloat16 or
    float16; None means ones and zeros. Raises ValueError, TypeError, KernelLaunchError.
    """
    weight = _ones(x) if weight is None else weight
    bias = torch.zeros_like(weight) if bias is None else bias
    y: Tensor = _layer_call(x, weight, bias, eps)[0]
    return y


bind_rms_norm = registry.binding({"rms_norm": rms_norm})
bind_layer_norm = registry.binding({"layer_norm": layer_norm})


def _ones(x: Tensor) -> Tensor:
    return torch.ones(x.shape[-1:], dtype=x.dtype, device=x.device)


def _kernels(op: str) -> Kernels:
    return registry.kernels_of(builders.TritonLayerNormBuilder if op == LAYER else builders.TritonRMSNormBuilder)


def _columns(op: str, x: Tensor, parameters: list[Tensor]) -> tuple[str, list[Tensor]]:
    """Returns the dtypes' part of kernel names, and weight and bias in a dtype that there are kernels for."""
    dtype = registry.dtype_name(op, x)
    registry.check_count(op, "the length of a row", x.shape[-1] if x.dim() else 0)
    if x.dim() and all(_is_usual(parameter, x) for parameter in parameters):
        return f"{dtype}_{dtype}", parameters
    for name, parameter in zip(("weight", "bias"), parameters, strict=False):
        if x.dim() == 0 or parameter.shape != x.shape[-1:] or parameter.device != x.device:
            expected = f"({x.shape[-1]},) on {x.device}" if x.dim() else "x to have a dimension of the same size"
            raise ValueError(
                f"{op}: {name} has shape {tuple(parameter.shape)} on {parameter.device}, expected {expected}"
            )
        registry.dtype_name(op, parameter)
    same_dtype = all(parameter.dtype == x.dtype for parameter in parameters)
    parameters = [(parameter if same_dtype else parameter.float()).contiguous() for parameter in parameters]
    return f"{dtype}_{dtype if same_dtype else 'fp32'}", parameters


def _is_usual(parameter: Tensor, x: Tensor) -> bool:
    return (
        parameter.dtype == x.dtype
        and parameter.dim() == 1
        and parameter.shape[0] == x.shape[-1]
        and parameter.is_contiguous()
        and parameter.device == x.device
    )


@functools.lru_cache(maxsize=registry.PLANS)
def _plan(op: str, *layouts: Any) -> registry.RowPlan | None:
    """Returns the launch of a forward for rows and parameters that need neither a copy nor a conversion.

    `layouts` are the dtype, the shape, the strides and the device of the rows, and then of each parameter.
    """
    (dtype, shape, strides, device), *others = (layouts[at : at + 4] for at in range(0, len(layouts), 4))
    name, kind = registry.DTYPE_NAMES.get(dtype), others[0][0]
    fits = all(
        other[0] == kind and other[1] == shape[-1:] and other[2] == (1,) and other[3] == device for other in others
    )
    if name is None or not fits or kind not in (dtype, torch.float32) or not shape:
        return None
    sizes = builders.forward_sizes(name, op == LAYER)
    return registry.row_plan(f"forward_{name}_{registry.DTYPE_NAMES[kind]}", sizes, shape, (strides,))


def _planned_rms(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor] | None:
    """Returns the RMS norm and its statistics; None if a tensor must be copied, converted or refused."""
    layout = (x.dtype, x.shape, x.stride(), x.device)
    plan = _plan(RMS, *layout, weight.dtype, weight.shape, weight.stride(), weight.device)
    if plan is None:
        return None
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    rstds, columns = x.new_empty(plan.leading, dtype=torch.float32), plan.columns
    name = plan.names[not ((x.data_ptr() | y.data_ptr() | weight.data_ptr()) & 15)]
    _kernels(RMS).launch(name, (plan.rows, 1, 1), x, weight, y, rstds, columns, *plan.strides, columns, eps)
    return y, rstds


def _planned_layer(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor] | None:
    """Returns the layer norm and its statistics; None if a tensor must be copied, converted or refused."""
    layout = (x.dtype, x.shape, x.stride(), x.device, weight.dtype, weight.shape, weight.stride(), weight.device)
    plan = _plan(LAYER, *layout, bias.dtype, bias.shape, bias.stride(), bias.device)
    if plan is None:
        return None
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    means, rstds = (x.new_empty(plan.leading, dtype=torch.float32) for _ in range(2))
    tensors, columns = (x, weight, bias, y, means, rstds), plan.columns
    name = plan.names[not ((x.data_ptr() | y.data_ptr() | weight.data_ptr() | bias.data_ptr()) & 15)]
    _kernels(LAYER).launch(name, (plan.rows, 1, 1), *tensors, columns, *plan.strides, columns, eps)
    return y, means, rstds


def _forward(op: str, x: Tensor, parameters: list[Tensor], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    dtypes, parameters = _columns(op, x, parameters)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    means, rstds = _statistics(op, x)
    if x.numel() == 0:
        return y, means.zero_(), rstds.fill_(eps**-0.5 if eps > 0 else float("inf"))
    columns, (rows, stride) = x.shape[-1], registry.rows_of(x)
    sizes = builders.forward_sizes(registry.DTYPE_NAMES[x.dtype], op == LAYER)
    size = registry.row_size(sizes, columns, ((rows, stride), (y, columns)), parameters)
    tensors = (rows, *parameters, y, means, rstds) if op == LAYER else (rows, *parameters, y, rstds)
    grid = (x.numel() // columns, 1, 1)
    _kernels(op).launch(f"forward_{dtypes}_{size.name}", grid, *tensors, columns, stride, columns, eps)
    return y, means, rstds


def _statistics(op: str, x: Tensor) -> tuple[Tensor, Tensor]:
    shape, device = x.shape[:-1], x.device
    rstds = torch.empty(shape, dtype=torch.float32, device=device)
    return (torch.empty(shape, dtype=torch.float32, device=device) if op == LAYER else rstds), rstds


def _backward(
    op: str, dy: Tensor, x: Tensor, parameters: list[Tensor], means: Tensor, rstds: Tensor
) -> tuple[Tensor, list[Tensor]]:
    registry.check_same(op, {"x": x, "the gradient": dy})
    dtypes, weights = _columns(op, x, parameters)
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.numel() == 0:
        return dx, [torch.zeros_like(parameter) for parameter in parameters]
    columns = x.shape[-1]
    matrices = ((dy_rows, dy_stride), (rows, stride), _) = (registry.rows_of(dy), registry.rows_of(x), (dx, columns))
    sizes = builders.backward_sizes(registry.DTYPE_NAMES[x.dtype], op == LAYER)
    size = registry.row_size(sizes, columns, matrices, weights[:1])
    count = x.numel() // columns
    blocks = 1 if size.once else -(-columns // size.block)
    programs = max(1, min(count, PROGRAMS[size.block] * devices.multiprocessor_count(x.device) // blocks))
    sums = [torch.empty((programs, columns), dtype=torch.float32, device=x.device) for _ in parameters]
    statistics = [tensor.contiguous() for tensor in ((means, rstds) if op == LAYER else (rstds,))]
    inputs, strides = [dy_rows, rows, weights[0], *statistics], [dy_stride, stride]
    kernels, name = _kernels(op), f"{dtypes}_{size.name}"
    numbers = [count, columns, *strides, columns]
    row_means = []
    if not size.once:
        row_means = [torch.empty((count, 2), dtype=torch.float32, device=x.device)]
        kernels.launch(f"backward_sums_{name}", (count, 1, 1), *inputs, *row_means, columns, *strides)
    kernels.launch(f"backward_{name}", (programs, blocks, 1), *inputs, *row_means, dx, *sums, *numbers)
    gradients = [partial.sum(0).to(parameter.dtype) for partial, parameter in zip(sums, parameters, strict=True)]
    return dx, gradients


def _rms(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    if planned := _planned_rms(x, weight, eps):
        return planned
    y, _means, rstds = _forward(RMS, x, [weight], eps)
    return y, rstds


def _rms_backward(dy: Tensor, x: Tensor, weight: Tensor, rstds: Tensor) -> tuple[Tensor, Tensor]:
    dx, (dweight,) = _backward(RMS, dy, x, [weight], rstds, rstds)
    return dx, dweight


def _layer(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    return _planned_layer(x, weight, bias, eps) or _forward(LAYER, x, [weight, bias], eps)


def _layer_backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, means: Tensor, rstds: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    dx, (dweight, dbias) = _backward(LAYER, dy, x, [weight, bias], means, rstds)
    return dx, dweight, dbias


def _fake_forward(x: Tensor, *others: Any) -> tuple[Tensor, ...]:
    statistics = [x.new_empty(x.shape[:-1], dtype=torch.float32) for _ in range(len(others) - 1)]
    return torch.empty_like(x, memory_format=torch.contiguous_format), *statistics


def _fake_backward(dy: Tensor, x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    parameters = others[: len(others) // 2]
    return torch.empty_like(x, memory_format=torch.contiguous_format), *(torch.empty_like(x) for x in parameters)


_rms_forward = registry.define("rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)", _rms, _fake_forward)
_rms_gradient = registry.define_gradient(
    "rms_norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor rstds) -> (Tensor, Tensor)",
    _rms_backward,
    _fake_backward,
)
_layer_forward = registry.define(
    "layer_norm(Tensor x, Tensor weight, Tensor bias, float eps) -> (Tensor, Tensor, Tensor)", _layer, _fake_forward
)
_layer_gradient = registry.define_gradient(
    "layer_norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor bias, Tensor means, Tensor rstds)"
    " -> (Tensor, Tensor, Tensor)",
    _layer_backward,
    _fake_backward,
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:-1], *output[1:])
    ctx.mark_non_differentiable(*output[1:])


_rms_call = registry.differentiable(
    _rms_forward, _rms, _save, lambda ctx, dy, *_statistics: (*_rms_gradient(dy, *ctx.saved_tensors), None)
)
_layer_call = registry.differentiable(
    _layer_forward, _layer, _save, lambda ctx, dy, *_statistics: (*_layer_gradient(dy, *ctx.saved_tensors), None)
)
