"""Quantization of groups of neighbouring values to 8 and 4 bits, and dequantization."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from opforge.builders.triton import quantizer as builders
from opforge.builders.triton_op_builder.launching import Grid
from opforge.builders.triton_op_builder.rows import LARGEST_COUNT

from . import devices, registry

OP = builders.TritonQuantizerBuilder.name


def quantize(x: Tensor, group_size: int, bits: int = 8, symmetric: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Quantizes x: value = code * scale + offset.

    A group is `group_size` neighbours in memory order. `bits` is 8 or 4. Values are rounded to the nearest code, halves
    to even. Symmetric codes are in +-(2^(bits-1) - 1). Asymmetric codes are in 0 .. 2^bits - 1 (8 bits: as the bits of
    an int8), and the offset is the smallest value of the group. Raises ValueError, TypeError, KernelLaunchError.

    Returns:
        The codes, int8: of x's shape for 8 bits; flat for 4 bits, two codes in a byte, the first in the low half. Each
        group's scale and offset, float32; the offsets are empty if `symmetric`.
    """
    codes, scales, offsets = _quantize_call(x, group_size, bits, symmetric)
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
    values: Tensor = _dequantize_call(codes, scales, offsets, bits, dtype)
    return values if shape is None else values.view(shape)


bind = registry.binding({"quantize": quantize, "dequantize": dequantize})


def _check(count: int, size: int, bits: int) -> None:
    if bits not in (8, 4):
        raise ValueError(f"{OP}: bits is {bits}, expected 8 or 4")
    if not 1 <= size <= LARGEST_COUNT or (bits == 4 and size % 2):
        even = "an even number " if bits == 4 else ""
        raise ValueError(f"{OP}: group_size is {size}, expected {even}from 1 to {LARGEST_COUNT}")
    if count % size:
        raise ValueError(f"{OP}: x has {count} values, expected a multiple of group_size, {size}")


class _Plan(NamedTuple):
    """The launch of a call, as far as it does not depend on addresses. Found once for calls with equal arguments."""

    groups: int
    kind: str
    """Part of the names of the kernels."""
    short: tuple[str, str]
    """The kernel for any address, and that for addresses that are multiples of 16; "" if the groups are too long."""
    grid: Grid
    can_be_wide: bool


@functools.lru_cache(maxsize=registry.PLANS)
def _plan(dtype: torch.dtype, count: int, size: int, bits: int, symmetric: bool) -> _Plan:
    _check(count, size, bits)
    kind = f"{'symmetric' if symmetric else 'asymmetric'}_{bits}_{registry.name_of(OP, dtype)}"
    block = next((block for block, _rows, _warps in builders.GROUPS if size <= block), 0)
    short = f"quantize_{kind}_any" if size <= builders.ANY[0] else "", f"quantize_{kind}_{block}" if block else ""
    return _Plan(count // size, kind, short, _grid(count // size, "ROWS"), size % 16 == 0)


def _is_wide(x: Tensor, y: Tensor) -> bool:
    return not ((x.data_ptr() | y.data_ptr()) & 15)


def _run_quantize(x: Tensor, group_size: int, bits: int, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    plan = _plan(x.dtype, x.numel(), group_size, bits, symmetric)
    x = x.contiguous()
    codes, scales, offsets = results = _fake_quantize(x, group_size, bits, symmetric)
    if plan.groups == 0:
        return results
    params = (scales,) if symmetric else (scales, offsets)
    kernels = registry.kernels_of(builders.TritonQuantizerBuilder)
    wide = plan.can_be_wide and _is_wide(x, codes)
    if name := plan.short[wide]:
        kernels.launch(name, plan.grid, x, codes, *params, plan.groups, group_size)
        return results
    suffix = f"{plan.kind}_{'aligned' if wide else 'any'}"
    if plan.groups >= 2 * devices.multiprocessor_count(x.device):
        kernels.launch(f"quantize_long_{suffix}", (plan.groups, 1, 1), x, codes, *params, group_size)
        return results
    grid = (-(-group_size // builders.PART), plan.groups, 1)
    extremes = torch.empty((plan.groups, grid[0], 2), dtype=torch.float32, device=x.device)
    kernels.launch(f"extremes_{suffix.split('_', 2)[2]}", grid, x, extremes, group_size)
    kernels.launch(f"encode_{suffix}", grid, x, codes, extremes, *params, group_size)
    return results


def check_codes(codes: Tensor, scales: Tensor, offsets: Tensor, bits: int) -> int:
    """Returns the group size of codes. Raises ValueError or TypeError unless the tensors belong together."""
    sizes = codes.numel(), scales.numel(), offsets.numel()
    size = _size_of_codes(sizes, (codes.dtype, scales.dtype, offsets.dtype), bits)
    if not codes.device == scales.device == offsets.device:
        name, tensor = ("offsets", offsets) if codes.device == scales.device else ("scales", scales)
        raise ValueError(f"{OP}: {name} is on {tensor.device}, expected {codes.device}, where codes is")
    return size


@functools.lru_cache(maxsize=registry.PLANS)
def _size_of_codes(sizes: tuple[int, int, int], dtypes: tuple[torch.dtype, ...], bits: int) -> int:
    codes, scales, offsets = sizes
    count = codes * (8 // bits if bits in (8, 4) else 1)
    size = count // scales if scales else 2  # without groups, any valid size will do
    _check(count, size, bits)
    if count != size * scales or offsets not in (0, scales):
        raise ValueError(
            f"{OP}: {count} codes have {scales} scales and {offsets} offsets, expected one scale per group, and one"
            " offset per group or none"
        )
    inputs = (("codes", torch.int8), ("scales", torch.float32), ("offsets", torch.float32))
    for (name, expected), dtype in zip(inputs, dtypes, strict=True):
        if dtype != expected:
            raise TypeError(f"{OP}: {name} is {dtype}, expected {expected}, as quantize returns it")
    return size


@functools.lru_cache(maxsize=registry.PLANS)
def _decoding(count: int, symmetric: bool, bits: int, dtype: torch.dtype) -> tuple[tuple[str, str], Grid]:
    name = f"dequantize_{'symmetric' if symmetric else 'asymmetric'}_{bits}_{registry.name_of(OP, dtype)}"
    return (f"{name}_any", f"{name}_aligned"), _grid(count, "BLOCK")


def _run_dequantize(codes: Tensor, scales: Tensor, offsets: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    size = check_codes(codes, scales, offsets, bits)
    count, symmetric = size * scales.numel(), offsets.numel() == 0
    names, grid = _decoding(count, symmetric, bits, dtype)
    codes = codes.contiguous()
    values = _fake_dequantize(codes, scales, offsets, bits, dtype)
    if count:
        params = (scales.contiguous(),) if symmetric else (scales.contiguous(), offsets.contiguous())
        wide = size % 16 == 0 and _is_wide(codes, values)
        registry.kernels_of(builders.TritonQuantizerBuilder).launch(
            names[wide], grid, codes, *params, values, count, size
        )
    return values


def _grid(count: int, each: str) -> Grid:
    """Returns the grid of a kernel of which each program processes as many of `count` as this constant says."""
    return lambda constants: (-(-count // constants[each]), 1, 1)


def _fake_quantize(x: Tensor, group_size: int, bits: int, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    count = x.numel()
    # empty_like takes half the time of new_empty with a shape.
    codes = _like(x, torch.int8) if bits == 8 else x.new_empty(count // 2, dtype=torch.int8)
    scales = x.new_empty(count // group_size, dtype=torch.float32)
    return codes, scales, scales.new_empty(0) if symmetric else torch.empty_like(scales)


def _fake_dequantize(codes: Tensor, scales: Tensor, offsets: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    return _like(codes, dtype) if bits == 8 else codes.new_empty(codes.numel() * 2, dtype=dtype)


def _like(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)


_quantize = registry.define(
    "quantize(Tensor x, int group_size, int bits, bool symmetric) -> (Tensor, Tensor, Tensor)",
    _run_quantize,
    _fake_quantize,
)
_quantize_call = registry.direct(_quantize, _run_quantize)
_dequantize = registry.define(
    "dequantize(Tensor codes, Tensor scales, Tensor offsets, int bits, ScalarType dtype) -> Tensor",
    _run_dequantize,
    _fake_dequantize,
)
_dequantize_call = registry.direct(_dequantize, _run_dequantize)
