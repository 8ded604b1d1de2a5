"""Quantisation by groups of neighbouring values, to 8 and 4 bits, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opforge.builders.triton import quantizer as declared
from opforge.builders.triton.launching import Kernels

from . import devices, registry

OP = declared.TritonQuantizerBuilder.name
LARGEST = (1 << 31) - 1


def quantize(x: Tensor, group_size: int, bits: int = 8, symmetric: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """The codes of x's values, and each group's scale and offset: value = code * scale + offset.

    A group is `group_size` neighbours in memory order. `bits` is 8 or 4. Codes are int8 of x's shape for 8 bits, and
    for 4 flat, two a byte, the first in the low half. Symmetric codes lie in +-(2^(bits-1) - 1), and the offsets are
    empty; asymmetric ones in 0 .. 2^bits - 1 (as the bits of an int8), and the offset is the group's least value.
    Rounds to the nearest, halves to even. Scales and offsets are float32. Raises ValueError, TypeError,
    KernelLaunchError.
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
    """The values that codes stand for, in `dtype` and `shape` (by default the codes' own, flat for 4 bits).

    Pass `quantize`'s offsets back as they were: empty, or None, means symmetric.
    Raises ValueError, TypeError, KernelLaunchError.
    """
    offsets = scales.new_empty(0) if offsets is None else offsets
    values: Tensor = _dequantize(codes, scales, offsets, bits, dtype)
    return values if shape is None else values.view(shape)


def bind(kernels: Kernels) -> dict[str, Any]:
    """Launch these kernels from now on; gives back the op's functions by name."""
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
    return size % 16 == 0 and all(one.data_ptr() % 16 == 0 for one in tensors)


def _run(x: Tensor, group_size: int, bits: int, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    _check(x.numel(), group_size, bits)
    dtype, x = registry.dtype_name(OP, x), x.contiguous()
    codes, scales, offsets = _fake(x, group_size, bits, symmetric)
    groups = x.numel() // group_size
    if groups:
        wide = _is_wide(group_size, x, codes)
        suffix = "aligned" if wide else "any"
        kernels = registry.kernels(OP, "TritonQuantizerBuilder")
        name = f"{'symmetric' if symmetric else 'asymmetric'}_{bits}_{dtype}"
        params = [scales, *([] if symmetric else [offsets])]
        offered = declared.GROUPS if wide else (declared.ANY,)
        block, rows, _warps = next((one for one in offered if group_size <= one[0]), (0, 0, 0))
        if block:
            name, grid = f"quantize_{name}_{block if wide else 'any'}", (-(-groups // rows), 1, 1)
            kernels.launch(name, grid, x, codes, *params, groups, group_size)
        elif groups >= 2 * devices.multiprocessor_count(x.device):
            kernels.launch(f"quantize_long_{name}_{suffix}", (groups, 1, 1), x, codes, *params, group_size)
        else:
            grid = (-(-group_size // declared.PART), groups, 1)
            found = torch.empty((groups, grid[0], 2), dtype=torch.float32, device=x.device)
            kernels.launch(f"extremes_{dtype}_{suffix}", grid, x, found, group_size)
            kernels.launch(f"encode_{name}_{suffix}", grid, x, codes, found, *params, group_size)
    return codes, scales, offsets


def _run_back(codes: Tensor, scales: Tensor, offsets: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    count = codes.numel() * (8 // bits if bits in (8, 4) else 1)
    size = count // scales.numel() if scales.numel() else 2  # of no groups, any size will do
    _check(count, size, bits)
    if count != size * scales.numel() or offsets.numel() not in (0, scales.numel()):
        wanted = "one scale a group, and one offset a group or none"
        raise ValueError(
            f"{OP}: {count} codes have {scales.numel()} scales and {offsets.numel()} offsets, expected {wanted}"
        )
    given = (("codes", codes, torch.int8), ("scales", scales, torch.float32), ("offsets", offsets, torch.float32))
    for name, one, expected in given:
        if one.dtype != expected:
            raise TypeError(f"{OP}: {name} is {one.dtype}, expected {expected}, as quantize gives it")
        if one.device != codes.device:
            raise ValueError(f"{OP}: {name} is on {one.device}, expected {codes.device}, where codes is")
    values = _fake_back(codes, scales, offsets, bits, dtype)
    way = "asymmetric" if offsets.numel() else "symmetric"
    codes = codes.contiguous()
    suffix = "aligned" if _is_wide(size, codes, values) else "any"
    name = f"dequantize_{way}_{bits}_{registry.dtype_name(OP, values)}_{suffix}"
    tensors = [codes, scales.contiguous(), *([offsets.contiguous()] if offsets.numel() else []), values]
    grid = (-(-count // declared.BACK[suffix]), 1, 1)
    if count:
        registry.kernels(OP, "TritonQuantizerBuilder").launch(name, grid, *tensors, count, size)
    return values


def _fake(x: Tensor, group_size: int, bits: int, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    shape = x.shape if bits == 8 else (x.numel() // 2,)
    scales = x.new_empty(x.numel() // group_size, dtype=torch.float32)
    return x.new_empty(shape, dtype=torch.int8), scales, scales.new_empty(0) if symmetric else torch.empty_like(scales)


def _fake_back(codes: Tensor, scales: Tensor, offsets: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    return codes.new_empty(codes.shape if bits == 8 else (codes.numel() * 2,), dtype=dtype)


_quantize = registry.define(
    "quantize(Tensor x, int group_size, int bits, bool symmetric) -> (Tensor, Tensor, Tensor)", _run, _fake
)
_dequantize = registry.define(
    "dequantize(Tensor codes, Tensor scales, Tensor offsets, int bits, ScalarType dtype) -> Tensor",
    _run_back,
    _fake_back,
)
