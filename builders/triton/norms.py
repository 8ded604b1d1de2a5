"""The builders of the layer norm and RMS norm ops."""

from __future__ import annotations

from opforge.builders.triton_op_builder.builder import TritonOpBuilder
from opforge.builders.triton_op_builder.kernel import Kernel
from opforge.builders.triton_op_builder.rows import (
    BACKWARD,
    BACKWARD_RMS,
    FORWARD,
    HEAVY,
    REGISTER_ROW,
    Size,
    dtype_pairs,
)

from .configs import by_warps, with_configs

SOURCE = "kernels/norm.py"
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
STAGED = 48 << 10
"""The most bytes of shared memory for rows that the backward reads ahead: two blocks of threads fit on any GPU."""


def forward_sizes(dtype: str, centred: bool) -> tuple[Size, ...]:
    """Returns the row sizes for which layer norm (`centred`) or RMS norm has forward kernels of this dtype."""
    return HEAVY if centred or dtype == "fp32" else FORWARD


def backward_sizes(dtype: str, centred: bool) -> tuple[Size, ...]:
    """Returns the row sizes for which layer norm (`centred`) or RMS norm has backward kernels of this dtype."""
    return BACKWARD if centred or dtype == "fp32" else BACKWARD_RMS


def _forward(dtype: str, weight: str, size: Size, centred: bool) -> Kernel:
    row, column = size.pointer(dtype), size.pointer(weight)
    arguments = {"x": row, "weight": column, "bias": column, "y": row, "means": "*fp32", "rstds": "*fp32"}
    arguments |= {"columns": size.integer("i32"), "x_stride": size.integer("i64"), "y_stride": size.integer("i64")}
    constants = {"CENTRED": centred, "ONCE": size.once, "BLOCK": size.block}
    return _kernel("forward", dtype, weight, size, {**arguments, "eps": "fp32"}, constants)


def _backward(dtype: str, weight: str, size: Size, centred: bool) -> list[Kernel]:
    row, column = size.pointer(dtype), size.pointer(weight)
    inputs = {"dy": row, "x": row, "weight": column, "means": "*fp32", "rstds": "*fp32"}
    columns, stride = {"columns": size.integer("i32")}, size.integer("i64")
    strides = {"dy_stride": stride, "x_stride": stride}
    outputs = {"dx": row, "dweights": size.pointer("fp32"), "dbiases": size.pointer("fp32"), "rows": "i32"}
    arguments = {**inputs, "sums": "*fp32", **outputs, **columns, **strides, "dx_stride": stride}
    constants: dict[str, int] = {"CENTRED": centred, "ONCE": size.once, "BLOCK": size.block}
    constants["AGAIN"] = size.once and size.block > REGISTER_ROW
    staged = 2 * size.block * BYTES[dtype]
    constants["STAGES"] = 1 if constants["AGAIN"] else min(3, 1 + STAGED // staged)
    kernels = [_kernel("backward", dtype, weight, size, arguments, constants)]
    if not size.once:
        sums, constants = {**inputs, "sums": "*fp32", **columns, **strides}, {"CENTRED": centred, "BLOCK": size.block}
        kernels.append(_kernel("backward_sums", dtype, weight, size, sums, constants))
    return kernels


def _kernel(
    function: str, dtype: str, weight: str, size: Size, arguments: dict[str, str], constants: dict[str, int]
) -> Kernel:
    absent = () if constants["CENTRED"] else ("bias", "means", "dbiases")
    if function == "backward" and size.once:
        absent = (*absent, "sums")
    passed = {name: kind for name, kind in arguments.items() if name not in absent}
    omitted = dict.fromkeys(name for name in arguments if name in absent)
    name = f"{function}_{dtype}_{weight}_{size.name}"
    kernel = Kernel(name, SOURCE, function, passed, {**constants, **omitted}, warps=size.warps)
    configs = by_warps(size.warps)
    if function == "backward" and not constants["AGAIN"]:
        configs += [{"STAGES": count} for count in (1, 2, 3)]
    return with_configs(kernel, configs)


def _kernels(centred: bool) -> list[Kernel]:
    kernels = []
    for dtype, weight in dtype_pairs():
        kernels += [_forward(dtype, weight, size, centred) for size in forward_sizes(dtype, centred)]
        kernels += [
            kernel for size in backward_sizes(dtype, centred) for kernel in _backward(dtype, weight, size, centred)
        ]
    return kernels


class TritonLayerNormBuilder(TritonOpBuilder):
    """layer_norm and layer_norm_backward; see opforge.ops.triton.norms."""

    name = "triton_layer_norm"
    python_functions = "opforge.ops.triton.norms:bind_layer_norm"
    compiles_configs = False
    cases = "opforge.ops.cases.triton_ops:LAYER_NORM"
    kernels = _kernels(centred=True)


class TritonRMSNormBuilder(TritonOpBuilder):
    """rms_norm and rms_norm_backward; see opforge.ops.triton.norms."""

    name = "triton_rms_norm"
    python_functions = "opforge.ops.triton.norms:bind_rms_norm"
    compiles_configs = False
    cases = "opforge.ops.cases.triton_ops:RMS_NORM"
    kernels = _kernels(centred=False)
