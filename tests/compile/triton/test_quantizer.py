"""The Triton quantizer, run by Triton's interpreter, against the reference."""

from __future__ import annotations

import pytest
import torch
from support.gpu.triton_cases import DTYPES, INTERPRETED

from opforge.ops import triton as ops
from opforge.ops.triton import references

pytestmark = INTERPRETED


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("groups", "size"), [(0, 64), (1, 2), (70, 64), (5, 1024), (2, 3000), (1, 3008)])
def test_codes_and_dequantized_values_agree_with_the_reference(groups, size, bits, symmetric, dtype):
    check_quantization(groups, size, bits, symmetric, dtype)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("groups", "size"), [(1, 16400), (1, 20002)])
def test_a_group_longer_than_any_block_is_quantized_in_two_passes(groups, size, bits, symmetric):
    check_quantization(groups, size, bits, symmetric, torch.float16)


def check_quantization(groups, size, bits, symmetric, dtype):
    x = torch.randn(groups, size).to(dtype)
    codes, scales, offsets = ops.quantize(x, size, bits, symmetric)
    expected, expected_scales, expected_offsets = references.quantize(x.float(), size, bits, symmetric)
    torch.testing.assert_close(scales, expected_scales)
    torch.testing.assert_close(offsets, expected_offsets)
    back = ops.dequantize(codes, scales, offsets, bits, torch.float32, (groups, size))
    # A code may differ by one if a division rounds the other way.
    off = (back - references.dequantize(expected, expected_scales, expected_offsets)).abs()
    assert (off <= scales[:, None] * 1.001 + 1e-6).all() and (
        (off > scales[:, None] / 2).sum() <= max(1, x.numel() // 1000)
    )
    assert ((back - x.float()).abs() <= scales[:, None] * 0.501 + 1e-6).all()
    assert codes.shape == (x.shape if bits == 8 else (x.numel() // 2,)) and codes.dtype == torch.int8


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("size", [64, 1032])  # the second one is no multiple of 16: in two passes
def test_a_group_with_nan_or_infinity_has_such_a_scale_and_the_others_are_as_without(size, bits, symmetric):
    x = torch.randn(5, size)
    for group, value in enumerate((float("nan"), float("inf"), -0.0, 1e-40)):
        x[group, size // 3] = value
    codes, scales, offsets = ops.quantize(x, size, bits, symmetric)
    _, expected_scales, expected_offsets = references.quantize(x, size, bits, symmetric)
    torch.testing.assert_close(scales, expected_scales, equal_nan=True)
    torch.testing.assert_close(offsets, expected_offsets, equal_nan=True)
    back = ops.dequantize(codes, scales, offsets, bits, torch.float32, (5, size))
    assert back[0].isnan().all() and back[2:].isfinite().all()
    assert ((back[2:] - x[2:]).abs() <= scales[2:, None] * 0.501 + 1e-6).all()


def test_quantization_of_a_constant_group_is_exact():
    for symmetric in (True, False):
        x = torch.tensor([[0.0] * 8, [2.5] * 8, [-3.0] * 8])
        codes, scales, offsets = ops.quantize(x, 8, 8, symmetric)
        torch.testing.assert_close(ops.dequantize(codes, scales, offsets), x)
