"""Group quantization to 8 and 4 bits: DeepSpeed's functions, over opforge's ops.

The first argument of each function is the loaded op; the op's module holds the functions with that argument bound.

A tensor is split, in memory order, into `groups` groups of equal size. The codes of a group are integers in
[-128, 127] for 8 bits and [-8, 7] for 4 bits. Symmetric: value = code * scale. Asymmetric: value = code * scale +
offset. The params of the groups are float32: [groups, 1] with the scale, or [groups, 2] with scale and offset. Of two
4-bit codes in a byte, the first is in the upper half. A group with an inf or a NaN has no finite value after
dequantization: it is NaN, but for an inf of any sign, which is inf.
"""

from __future__ import annotations

import enum
from functools import partial
from typing import Any

import torch
from torch import Tensor


class QuantizationType(enum.IntEnum):
    """Whether a group has an offset; Symmetric has none."""

    Symmetric = 0
    Asymmetric = 1


Symmetric, Asymmetric = QuantizationType


def quantize(
    op: Any,
    input_vals: Tensor,
    groups: int,
    num_bits: int,
    quant_type: int,
    *,
    stochastic: bool = False,
    seed: int = 0,
    offset: int = 0,
) -> tuple[Tensor, Tensor]:
    """Quantizes a tensor.

    `stochastic` rounds up with a probability that is the fraction, to 2^-16. Its Philox random numbers depend only on
    `seed`, `offset` and the element's index, so results repeat. Another `offset` gives other numbers.

    Returns:
        The codes, int8 of the input's shape (with 4 bits the last dimension is half as long), and the groups' params.
    """
    shape = _codes_shape(input_vals, num_bits)
    codes = torch.empty(shape, dtype=torch.int8, device=input_vals.device)
    params = _params(input_vals, groups, quant_type)
    op.quantize_(
        codes,
        params,
        input_vals.contiguous(),
        groups,
        num_bits,
        quant_type == Symmetric,
        stochastic=stochastic,
        seed=seed,
        offset=offset,
    )
    return codes, params


def dequantize(op: Any, quantized_data: Tensor, params: Tensor, groups: int, num_bits: int, quant_type: int) -> Tensor:
    """Returns the values, in float16."""
    return _dequantize(op, quantized_data, params, groups, num_bits, quant_type, torch.float16)


def dequantize_fp32(
    op: Any, quantized_data: Tensor, params: Tensor, groups: int, num_bits: int, quant_type: int
) -> Tensor:
    """Returns the values, in float32."""
    return _dequantize(op, quantized_data, params, groups, num_bits, quant_type, torch.float32)


def dequantize_bf16(
    op: Any, quantized_data: Tensor, params: Tensor, groups: int, num_bits: int, quant_type: int
) -> Tensor:
    """Returns the values, in bfloat16."""
    return _dequantize(op, quantized_data, params, groups, num_bits, quant_type, torch.bfloat16)


def swizzle_quant(
    op: Any,
    input_vals: Tensor,
    groups: int,
    num_bits: int,
    quant_type: int,
    pipeline_size: int,
    nodes: int,
    devices_per_node: int,
) -> tuple[Tensor, Tensor]:
    """Quantizes as `quantize` does, and orders the groups and their params as they are sent.

    The partition for device d of node n is written at index d * nodes + n. With a pipeline, the first slices of all
    partitions come first.

    Returns:
        The codes, flat int8, and the groups' params.
    """
    codes = torch.empty(input_vals.numel() * num_bits // 8, dtype=torch.int8, device=input_vals.device)
    params = _params(input_vals, groups, quant_type)
    op.quantize_(
        codes,
        params,
        input_vals.contiguous(),
        groups,
        num_bits,
        quant_type == Symmetric,
        pipeline_size,
        nodes,
        devices_per_node,
    )
    return codes, params


def quantized_reduction(
    op: Any,
    input_vals: Tensor,
    input_scales: Tensor,
    in_groups: int,
    out_groups: int,
    num_bits: int,
    quant_type: int,
    devices_per_node: int,
) -> tuple[Tensor, Tensor]:
    """Adds `devices_per_node` quantized tensors that are stored one after the other, and quantizes the sum.

    `in_groups` is the number of groups of all tensors together, `out_groups` that of the sum. Sums are in float32, in
    the tensors' order.

    Returns:
        The codes, int8 with a last dimension `devices_per_node` times shorter, and the groups' params.
    """
    shape = list(input_vals.shape)
    shape[-1] //= max(devices_per_node, 1)
    codes = torch.empty(shape, dtype=torch.int8, device=input_vals.device)
    params = _params(input_vals, out_groups, quant_type)
    op.quantized_reduction_(
        codes,
        params,
        input_vals.contiguous(),
        input_scales.contiguous(),
        in_groups,
        out_groups,
        num_bits,
        quant_type == Symmetric,
        devices_per_node,
    )
    return codes, params


def dequantize_int4_to_half_experimental(
    op: Any, data_in: Tensor, scale_buffer: Tensor, min_val_buffer: Tensor, num_group: int, group_size: int
) -> Tensor:
    """Returns code / scale + minimum of unsigned 4-bit codes, float16 [num_group, group_size], by torch's own ops."""
    pairs = data_in.view(torch.uint8).reshape(-1)
    codes = torch.stack((pairs >> 4, pairs & 0xF), dim=-1)
    return _from_unsigned(codes, scale_buffer, min_val_buffer, num_group, group_size)


def dequantize_int8_to_half_experimental(
    op: Any, data_in: Tensor, scale_buffer: Tensor, min_val_buffer: Tensor, num_group: int, group_size: int
) -> Tensor:
    """Returns code / scale + minimum of unsigned 8-bit codes, float16 [num_group, group_size], by torch's own ops."""
    return _from_unsigned(data_in.view(torch.uint8), scale_buffer, min_val_buffer, num_group, group_size)


def _from_unsigned(codes: Tensor, scale: Tensor, minimum: Tensor, num_group: int, group_size: int) -> Tensor:
    values = codes.reshape(num_group, group_size).to(torch.float16)
    return values / scale.reshape(num_group, 1).half() + minimum.reshape(num_group, 1).half()


def _dequantize(
    op: Any, codes: Tensor, params: Tensor, groups: int, num_bits: int, quant_type: int, dtype: torch.dtype
) -> Tensor:
    shape = [*codes.shape[:-1], 2 * codes.shape[-1]] if num_bits == 4 and codes.dim() else codes.shape
    out = torch.empty(shape, dtype=dtype, device=codes.device)
    op.dequantize_(out, codes.contiguous(), params.contiguous(), groups, num_bits, quant_type == Symmetric)
    return out


def _codes_shape(values: Tensor, num_bits: int) -> list[int]:
    shape = list(values.shape)
    if num_bits == 4:
        if not shape or shape[-1] % 2:
            raise ValueError(
                f"input_vals has shape {tuple(shape)}, expected an even last dimension: two 4-bit codes share a byte"
            )
        shape[-1] //= 2
    return shape


def _params(values: Tensor, groups: int, quant_type: int) -> Tensor:
    shape = (max(groups, 0), 1 if quant_type == Symmetric else 2)
    make = torch.empty if values.numel() else torch.zeros  # the op writes nothing for groups without a value
    return make(shape, dtype=torch.float32, device=values.device)


def functions(op: Any) -> dict[str, Any]:
    """Returns the Python functions of the loaded op quantizer, with the names of its codings."""
    bound = (
        quantize,
        dequantize,
        dequantize_fp32,
        dequantize_bf16,
        swizzle_quant,
        quantized_reduction,
        dequantize_int4_to_half_experimental,
        dequantize_int8_to_half_experimental,
    )
    names = {"QuantizationType": QuantizationType, "Symmetric": Symmetric, "Asymmetric": Asymmetric}
    return {**names, **{function.__name__: partial(function, op) for function in bound}}
