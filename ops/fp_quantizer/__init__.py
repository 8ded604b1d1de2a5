"""Quantization to small floating-point numbers: DeepSpeed's functions, and `FPQuantizer`, over opforge's ops.

A tensor is split, in memory order, into groups of `group_size` values. Each group becomes a row of bytes: its codes, a
stream of bits from the lowest one up, and four bytes with its scale in float32. docs/fp-quantizer.md has the formats.

The first argument of each function is the loaded op; the op's module holds the functions with that argument bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from opforge.ops.host_op import host_op

SCALE_BYTES = 4


class FPQuantizer:
    """Quantizes tensors to rows of floating-point codes, and back.

    Args:
        group_size: Values that share a scale. The codes of a group must be whole bytes: 6 bits need a multiple of 4, 12
            and 4 bits an even number.
        q_bits: Bits of a code: 12, 8, 6 or 4.
        q_mantissa_bits: Bits of the mantissa of a code of 8 bits: 3 or 2. Others have one size, and ignore it.
    """

    def __init__(self, group_size: int = 512, q_bits: int = 8, q_mantissa_bits: int = 3) -> None:
        if q_bits not in (12, 8, 6, 4):
            raise ValueError(f"q_bits is {q_bits!r}, expected 12, 8, 6 or 4")
        if q_bits == 8 and q_mantissa_bits not in (3, 2):
            raise ValueError(f"q_mantissa_bits is {q_mantissa_bits!r}, expected 3 or 2 for 8 bits")
        if not hasattr(type(group_size), "__index__") or group_size < 1:
            raise ValueError(f"group_size is {group_size!r}, expected a whole number, at least 1")
        if group_size * q_bits % 8:
            expected = (
                f"a multiple of {4 if q_bits == 6 else 2}: the codes of a group, of {q_bits} bits each, are whole bytes"
            )
            raise ValueError(f"group_size is {group_size}, expected {expected}")
        self.group_size = group_size
        self.q_bits = q_bits
        self.q_mantissa_bits = q_mantissa_bits
        self._host, self._gpu = host_op("FPQuantizerBuilder"), None

    def quantize(
        self, input: Tensor, *, stochastic: bool = False, seed: int | None = None, generator: Any = None
    ) -> Tensor:
        """Quantizes a float32, bfloat16 or float16 tensor.

        Args:
            input: The values. Their number must be a multiple of the group size.
            stochastic: Rounds up with a probability that is the fraction, instead of to nearest.
            seed: Seed of the random numbers, for results that repeat. They depend on it and on a value's index alone.
            generator: The torch.Generator that draws the seed if there is none; torch's default one if None.

        Returns:
            The rows, uint8 [groups, bytes of a row].
        """
        out = _rows(input, self.group_size, self.q_bits)
        seed = _seed(seed, generator) if stochastic else 0
        self._op(input).fp_quantize_(
            out, input.contiguous(), self.group_size, self.q_bits, self.q_mantissa_bits, stochastic, seed
        )
        return out

    def dequantize(
        self, rows: Tensor, shape: Sequence[int] | None = None, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Returns the values of rows in a shape and dtype. The shape is [groups, group_size] if it is None."""
        out = torch.empty(self._shape(rows, shape), dtype=dtype, device=rows.device)
        self._op(rows).fp_dequantize_(out, rows.contiguous(), self.group_size, self.q_bits, self.q_mantissa_bits)
        return out

    def selective_dequantize(
        self, rows: Tensor, indexes: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Returns some blocks of the values: those at `indexes` along the first dimension. Only they are read.

        Args:
            rows: The rows of a whole tensor.
            indexes: Indexes, int32 or int64. They may repeat, and have any order.
            shape: The shape of the whole tensor. A block, which is one index of its first dimension, has whole groups.
            dtype: The dtype of the result.

        Returns:
            The values, in the shape of the whole tensor with `len(indexes)` blocks.
        """
        out = torch.empty((indexes.numel(), *shape[1:]), dtype=dtype, device=rows.device)
        self._op(rows).fp_selective_dequantize_(
            out, rows.contiguous(), indexes.contiguous(), self.group_size, self.q_bits, self.q_mantissa_bits
        )
        return out

    def get_scales(self, rows: Tensor) -> Tensor:
        """Returns the scales of rows, float32 [groups, 1]. It is a view of them if they are at aligned addresses."""
        return _scales(rows)

    def _op(self, tensor: Tensor) -> Any:
        """Returns the op of a tensor's device; the host's for any device without one, so that its error is raised."""
        if not tensor.is_cuda:
            return self._host
        if self._gpu is None:
            from opforge.accelerator.by_device import accelerator_of

            self._gpu = accelerator_of(tensor.device.type).load_op("FPQuantizerBuilder")
        return self._gpu

    def _shape(self, rows: Tensor, shape: Sequence[int] | None) -> Sequence[int]:
        return (rows.shape[0], self.group_size) if shape is None else shape


def quantize(
    op: Any,
    out: Tensor,
    val: Tensor,
    group_size: int,
    stochastic_rounding: int,
    q_bits: int,
    q_mantisa_bits: int,
    *,
    seed: int | None = None,
) -> Tensor:
    """Quantizes `val` into the rows `out`, uint8, and returns them. Without a seed, torch's generator draws one."""
    number = _seed(seed, None) if stochastic_rounding else 0
    op.fp_quantize_(out, val.contiguous(), group_size, q_bits, q_mantisa_bits, bool(stochastic_rounding), number)
    return out


def dequantize(op: Any, val: Tensor, val_q: Tensor, group_size: int, q_mantisa_bits: int, q_exponent_bits: int) -> None:
    """Writes the values of the rows `val_q` to `val`, in its dtype."""
    op.fp_dequantize_(val, val_q, group_size, q_mantisa_bits + q_exponent_bits + 1, q_mantisa_bits)


def selective_dequantize(
    op: Any,
    val: Tensor,
    val_q: Tensor,
    indexes: Tensor,
    group_size: int,
    q_mantisa_bits: int,
    q_exponent_bits: int,
) -> None:
    """Writes blocks of the rows `val_q` to `val`: those at `indexes`, int32 or int64, of as many groups each."""
    bits = q_mantisa_bits + q_exponent_bits + 1
    op.fp_selective_dequantize_(val, val_q, indexes.contiguous(), group_size, bits, q_mantisa_bits)


def get_scales(op: Any, out: Tensor, num_groups: int) -> Tensor:
    """Returns the last four bytes of each row of `out` as float32 [num_groups, 1]: whole rows, or the scales alone."""
    if num_groups < 1 or out.numel() % num_groups or (out.dim() == 2 and len(out) != num_groups):
        raise ValueError(f"num_groups is {num_groups}, expected the number of rows of out, {tuple(out.shape)}")
    return _scales(out.reshape(num_groups, -1))


def _scales(rows: Tensor) -> Tensor:
    if rows.dim() != 2 or rows.shape[1] < SCALE_BYTES or rows.element_size() != 1:
        raise ValueError(
            f"rows is {rows.dtype} of shape {tuple(rows.shape)}, expected uint8 [groups, {SCALE_BYTES} or more]"
        )
    scales = rows[:, -SCALE_BYTES:]
    aligned = rows.stride(0) % SCALE_BYTES == 0 and scales.storage_offset() % SCALE_BYTES == 0
    # .contiguous() would keep one row where it is: a tensor of one row is contiguous wherever it begins.
    return (scales if aligned else scales.clone(memory_format=torch.contiguous_format)).view(torch.float32)


def _rows(values: Tensor, group_size: int, q_bits: int) -> Tensor:
    """Returns empty rows for the values. The op checks that the groups divide them."""
    groups = values.numel() // max(group_size, 1)
    size = max(group_size, 0) * q_bits // 8 + SCALE_BYTES
    return torch.empty((groups, size), dtype=torch.uint8, device=values.device)


def _seed(seed: int | None, generator: Any) -> int:
    if seed is None:
        device = "cpu" if generator is None else generator.device
        return int(torch.randint(2**63 - 1, (), generator=generator, device=device))
    return seed - 2**64 if seed >= 2**63 else seed  # torch.initial_seed() may be any number of 64 bits


def functions(op: Any) -> dict[str, Any]:
    """Returns the Python functions of the loaded op fp_quantizer."""
    bound = (quantize, dequantize, selective_dequantize, get_scales)
    return {function.__name__: partial(function, op) for function in bound}
