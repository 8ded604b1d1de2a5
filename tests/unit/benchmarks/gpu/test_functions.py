"""The bytes that functions must move, and quantization with torch's operators."""

from __future__ import annotations

import pytest
import torch


def bytes_each(name, way, dtype):
    """Returns the bytes that a function must move for one element of each matrix."""
    from benchmarks.gpu.functions import FUNCTIONS

    (function,) = [function for function in FUNCTIONS if function.name == name]
    return function.bytes_moved(way, 1, dtype)


def test_a_function_moves_each_of_its_matrices_once():
    assert bytes_each("layer_norm", "forward", torch.bfloat16) == 4  # x, y
    assert bytes_each("rms_norm", "backward", torch.bfloat16) == 6  # dy, x, dx
    assert bytes_each("softmax", "backward", torch.float32) == 12  # dy, y, dx
    assert bytes_each("gelu", "forward", torch.float32) == 8
    assert bytes_each("swiglu", "forward", torch.bfloat16) == 6  # gate, up, y
    assert bytes_each("swiglu", "backward", torch.bfloat16) == 10  # dy, gate, up, and two gradients


def test_quantisation_moves_values_codes_and_a_scale_a_group():
    from opforge.ops.cases.traffic import quantized

    assert quantized(1024, 2, 8, 128) == 2048 + 1024 + 8 * 4
    assert quantized(1024, 2, 4, 128) == 2048 + 512 + 8 * 4


@pytest.mark.parametrize("bits", [8, 4])
def test_quantization_with_torchs_operators_follows_our_rule(bits):
    from benchmarks.gpu.functions import torch_dequantize, torch_quantize

    from opforge.ops.triton import references

    x = torch.randn(6, 32)
    x[2] = 0.0
    codes, scales = torch_quantize(x, 32, bits)
    expected, expected_scales, _offsets = references.quantize(x, 32, bits, True)
    values = (expected * expected_scales[:, None]).view(-1)
    assert codes.dtype == torch.int8 and codes.numel() == x.numel() * bits // 8
    torch.testing.assert_close(scales, expected_scales)
    assert torch.equal(torch_dequantize(codes, scales, bits, torch.float32), values)
