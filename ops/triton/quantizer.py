"""Quantization of groups of neighbouring values to 8 and 4 bits, and dequantization."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opforge.builders.triton import quantizer as builders
from opforge.builders.triton_op_builder.launching import Kernels

from . import devices, registry

OP = builders.TritonQuantizerBuilder.name
LARGEST = (1 << 31) - 1


def quantize(x: Tensor, group_size: int, bits: int = 8, symmetric: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Quantizes x: value = code * scale + offset.

    A group is `group_size` neighbours in memory order. `bits` is 8 or 4. Values are rounded to the nearest code, halves
    to even. Symmetric codes are in +-(2^(bits-1) - 1). Asymmetric codes are in 0 .. 2^bits - 1 (8 bits: as the bits of
    an int8), and the offset is the smallest value of the group. Raises ValueError, TypeError, KernelLaunchError.

    Returns:
        The codes, int8: of x's shape for 8 bits; flat for 4 bits, two codes in a byte, the first in the low half. Each
        group's scale and offset, float32; the offsets are empty if `symmetric`.
    """
    codes, scales, offsets = _quantize(x, group_size, bits, symmetric)
    return codes, scales, offsets


def dequantize(
    codes: Tensor,
    scales: Tensor,
    offsets: Tensor | None = None,
    bits: int = 8,
    dtype: torch.dtype = torch.float32,
    shape: tuple[int, ...] | None = None,
) -> Tensor:
    """Returns the values of codes, in `dtype` and `shape` (default: the shape of the codes, for 4 bits flat).

    `offsets` are those that `quantize` returned; empty or None means symmetric. Raises ValueError, TypeError,
    KernelLaunchError.
    """
    offsets = scales.new_empty(0) if offsets is None else offsets
    values: Tensor = _dequantize(codes, scales, offsets, bits, dtype)
    return values if shape is None else values.view(shape)


def bind(kernels: Kernels) -> dict[str, Any]:
    """Makes the op's functions launch these kernels from now on, and returns the functions by name."""
    registry.bind(kernels)
    return {"quantize": quantize, "dequantize": dequantize}


def _check(count: int, size: int, bits: int) -> None:
    if bits not in (8, 4):
        raise ValueError(f"{OP}: bits is {bits}, expected 8 or 4")
    if not 1 <= size <= LARGEST or (bits == 4 and size % 2):
        even = "an even number " if bits == 4 else ""
        raise ValueError(f"{OP}: group_size is {size}, expected {even}from 1 to {LARGEST}")
    if count % size:
        raise ValueError(f"{OP}: x has {count} values, expected a multiple of group_size, {size}")


def _is_wide(size: int, *tensors: Tensor) -> bool:
    return size % 16 == 0 and all(tensor.data_ptr() % 16 == 0 for tensor in tensors)


def _run_quantize(x: Tensor, group_size: int, bits: int, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    _check(x.numel(), group_size, bits)
    dtype, x = registry.dtype_name(OP, x), x.contiguous()
    codes, scales, offsets = _fake_quantize(x, group_size, bits, symmetric)
    groups = x.numel() // group_size
    if groups:
        wide = _is_wide(group_size, x, codes)
        suffix = "aligned" if wide else "any"
        kernels = registry.kernels_of(OP, "TritonQuantizerBuilder")
        name = f"{'symmetric' if symmetric else 'asymmetric'}_{bits}_{dtype}"
        params = [scales, *([] if symmetric else [offsets])]
        blocks = builders.GROUPS if wide else (builders.ANY,)
        block, rows, _warps = next((block for block in blocks if group_size <= block[0]), (0, 0, 0))
        if block:
            name, grid = f"quantize_{name}_{block if wide else 'any'}", (-(-groups // rows), 1, 1)
            kernels.launch(name, grid, x, codes, *params, groups, group_size)
        elif groups >= 2 * devices.multiprocessor_count(x.device):
            kernels.launch(f"quantize_long_{name}_{suffix}", (groups, 1, 1), x, codes, *params, group_size)
        else:
            grid = (-(-group_size // builders.PART), groups, 1)
            extremes = torch.empty((groups, grid[0], 2), dtype=torch.float32, device=x.device)
            kernels.launch(f"extremes_{dtype}_{suffix}", grid, x, extremes, group_size)
            kernels.launch(f"encode_{name}_{suffix}", grid, x, codes, extremes, *params, group_size)
    return codes, scales, offsets


def check_codes(codes: Tensor, scales: Tensor, offsets: Tensor, bits: int) -> int:
    """Returns the group size of codes. Raises ValueError or TypeError unless the tensors belong together."""
    count = codes.numel() * (8 // bits if bits in (8, 4) else 1)
    size = count // scales.numel() if scales.numel() else 2  # without groups, any valid size will do
    _check(count, size, bits)
    if count != size * scales.numel() or offsets.numel() not in (0, scales.numel()):
        raise ValueError(
            f"{OP}: {count} codes have {scales.numel()} scales and {offsets.numel()} offsets, expected one scale per"
            " group, and one offset per group or none"
        )
    inputs = (("codes", codes, torch.int8), ("scales", scales, torch.float32), ("offsets", offsets, torch.float32))
    for name, tensor, expected in inputs:
        if tensor.dtype != expected:
            raise TypeError(f"{OP}: {name} is {tensor.dtype}, expected {expected}, as quantize returns it")
        if tensor.device != codes.device:
            raise ValueError(f"{OP}: {name} is on {tensor.device}, expected {codes.device}, where codes is")
    return size


def _run_dequantize(codes: Tensor, scales: Tensor, offsets: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    size = check_codes(codes, scales, offsets, bits)
    count = size * scales.numel()
    values = _fake_dequantize(codes, scales, offsets, bits, dtype)
    kind = "asymmetric" if offsets.numel() else "symmetric"
    codes = codes.contiguous()
    suffix = "aligned" if _is_wide(size, codes, values) else "any"
    name = f"dequantize_{kind}_{bits}_{registry.dtype_name(OP, values)}_{suffix}"
    tensors = [codes, scales.contiguous(), *([offsets.contiguous()] if offsets.numel() else []), values]
    grid = (-(-count // builders.DEQUANTIZE_BLOCK[suffix]), 1, 1)
    if count:
        registry.kernels_of(OP, "TritonQuantizerBuilder").launch(name, grid, *tensors, count, size)
    return values


def _fake_quantize(x: Tensor, group_size: int, bits: int, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    shape = x.shape if bits == 8 else (x.numel() // 2,)
    scales = x.new_empty(x.numel() // group_size, dtype=torch.float32)
    return x.new_empty(shape, dtype=torch.int8), scales, scales.new_empty(0) if symmetric else torch.empty_like(scales)


def _fake_dequantize(codes: Tensor, scales: Tensor, offsets: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    return codes.new_empty(codes.shape if bits == 8 else (codes.numel() * 2,), dtype=dtype)


_quantize = registry.define(
    "quantize(Tensor x, int group_size, int bits, bool symmetric) -> (Tensor, Tensor, Tensor)",
    _run_quantize,
    _fake_quantize,
)
_dequantize = registry.define(
    "dequantize(Tensor codes, Tensor scales, Tensor offsets, int bits, ScalarType dtype) -> Tensor",
    _run_dequantize,
    _fake_dequantize,
)
