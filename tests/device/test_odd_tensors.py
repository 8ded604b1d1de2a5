"""Unusual inputs of the ops on a GPU: no tensors, NaN, infinity, unaligned addresses, other streams, huge tensors."""

from __future__ import annotations

import math

import pytest
import torch
from support.gpu import triton_parts

from opforge.ops import triton as ops

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use"),
]
LION = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}
ADAM = {**LION, "eps": 1e-6, "step": 1, "adamw_mode": True, "bias_correction": True}
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, 3e38, 1.0)


def zero_flag() -> torch.Tensor:
    """Returns a noop flag that does not stop the update."""
    return torch.zeros(1, dtype=torch.int32, device="cuda")


def test_calls_without_tensors_and_with_empty_ones_do_nothing(cuda_op):
    adam, empty = cuda_op("FusedAdamBuilder"), torch.empty(0, device="cuda")
    adam.fused_adam_(zero_flag(), [], [], [], [], [], **ADAM)
    adam.fused_adam_(zero_flag(), *([empty.clone()] for _ in range(4)), [], **ADAM)
    quantizer = cuda_op("QuantizerBuilder")
    codes, params = quantizer.quantize(torch.empty(4, 0, device="cuda"), 4, 8, quantizer.Symmetric)
    assert codes.shape == (4, 0) and params.shape == (4, 1)
    torch.cuda.synchronize()


def test_nan_and_infinity_affect_only_their_own_elements(cuda_op):
    """The results are those of the CPU's kernel."""
    from opforge.builders.cpu.fused_adam import FusedAdamBuilder

    here = [torch.ones(4096) for _ in range(4)]
    here[1][100 : 100 + len(SPECIAL)] = torch.tensor(SPECIAL)
    here[3][200 : 200 + len(SPECIAL)] = torch.tensor(SPECIAL)
    there = [[tensor.cuda()] for tensor in here]
    cuda_op("FusedAdamBuilder").fused_adam_(zero_flag(), *there, [], **ADAM)
    FusedAdamBuilder().load().fused_adam_(torch.zeros(1, dtype=torch.int32), *([tensor] for tensor in here), [], **ADAM)
    for tensor, (other,) in zip(here, there, strict=True):
        torch.testing.assert_close(other.cpu(), tensor, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert there[0][0][:100].isfinite().all() and there[0][0][300:].isfinite().all()


def test_only_a_group_with_nan_or_infinity_is_dequantized_to_nan(cuda_op):
    op, values = cuda_op("QuantizerBuilder"), torch.randn(8, 512, device="cuda", dtype=torch.bfloat16)
    values[2, 5], values[6, 511] = math.nan, math.inf
    for bits in (8, 4):
        codes, params = op.quantize(values, 8, bits, op.Symmetric)
        bad = op.dequantize_fp32(codes, params, 8, bits, op.Symmetric).isnan().any(1)
        assert bad.tolist() == [row in (2, 6) for row in range(8)]


@triton_parts.needs_triton
@pytest.mark.parametrize("columns", [1024, 20_000])
def test_softmax_and_norms_of_nan_and_infinity_agree_with_torch(columns):
    x = torch.randn(6, columns, device="cuda")
    x[1, 3], x[2, 3], x[3, 3], x[4] = math.nan, math.inf, -math.inf, -math.inf
    weight = torch.ones(columns, device="cuda")
    torch.testing.assert_close(ops.softmax(x), torch.softmax(x, -1), equal_nan=True)
    normed = torch.nn.functional.rms_norm(x, (columns,), weight, 1e-5)
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-5), normed, rtol=1e-4, atol=1e-5, equal_nan=True)


@triton_parts.needs_triton
def test_unaligned_rows_and_rows_with_gaps_are_read_correctly():
    whole = torch.randn(64, 4099, device="cuda")
    for x in (whole[:, 1:4097], whole[:, 3:], whole.view(-1)[1 : 1 + 64 * 4098].view(64, 4098), whole.t()):
        torch.testing.assert_close(ops.softmax(x), torch.softmax(x, -1))
    assert ops.softmax(whole[:0]).shape == (0, 4099) and ops.gelu(whole[:, :0]).shape == (64, 0)


@triton_parts.needs_triton
def test_triton_optimizers_accept_no_tensors_and_unaligned_ones():
    ops.fused_adam_(zero_flag(), [], [], [], [], [], **ADAM)
    shifted = [[torch.rand(5001, device="cuda")[1:]] for _ in range(4)]
    aligned = [[tensor.clone() for tensor in tensors] for tensors in shifted]
    for lists in (shifted, aligned):
        ops.fused_adam_(zero_flag(), *lists, [], **ADAM)
    for (tensor,), (other,) in zip(shifted, aligned, strict=True):
        torch.testing.assert_close(tensor, other, rtol=1e-6, atol=1e-7)


@triton_parts.needs_triton
def test_a_triton_kernel_waits_for_its_stream():
    x, stream = torch.randn(64, 1024, device="cuda"), torch.cuda.Stream()
    ops.softmax(x)  # loads its code
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        y = ops.softmax(x)
    assert not stream.query()
    stream.synchronize()
    torch.testing.assert_close(y, torch.softmax(x, -1))


@triton_parts.needs_triton
def test_a_triton_kernel_runs_on_the_device_of_its_tensors():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x = torch.randn(64, 1024, device="cuda:1")
    y = ops.softmax(x)
    assert torch.cuda.current_device() == 0 and y.device == x.device
    torch.testing.assert_close(y, torch.softmax(x, -1))


HUGE = 2**31 + (1 << 17)


def needs_memory(size: int) -> None:
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    if free < size:
        pytest.skip(f"needs {size >> 30} GiB of free GPU memory, and {free >> 30} GiB are free")


@triton_parts.needs_triton
def test_rows_beyond_two_to_the_31st_element_are_computed():
    needs_memory(8 * HUGE)
    x = torch.zeros(HUGE >> 17, 1 << 17, device="cuda", dtype=torch.bfloat16)
    x[-1] = torch.randn(1 << 17, device="cuda")
    last = x[-1:].clone()
    for op in (ops.softmax, ops.gelu, ops.rms_norm):
        y = op(x)
        assert torch.equal(y[-1:], op(last)) and not y[-1].isnan().any()
        del y


def test_codes_beyond_two_to_the_31st_are_encoded_and_decoded(cuda_op):
    needs_memory(10 * HUGE)
    op, values = cuda_op("QuantizerBuilder"), torch.zeros(HUGE, device="cuda", dtype=torch.bfloat16)
    values[-4096:] = torch.randn(4096, device="cuda")
    for bits in (8, 4):
        codes, params = op.quantize(values, HUGE // 4096, bits, op.Symmetric)
        small, scale = op.quantize(values[-4096:], 1, bits, op.Symmetric)
        assert torch.equal(codes[-small.numel() :], small) and torch.equal(params[-1:], scale)
        back = op.dequantize_bf16(codes, params, HUGE // 4096, bits, op.Symmetric)
        assert torch.equal(back[-4096:], op.dequantize_bf16(small, scale, 1, bits, op.Symmetric))
        del codes, params, back
