"""DeepSpeed's smaller ops for transformers on a GPU, in every dtype, against torch's own operations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.gpu import triton_parts

from opforge.builders.triton.transformer import InferenceCoreBuilder, RandomLTDBuilder, SpatialInferenceBuilder
from opforge.ops.random_ltd import gather_tokens, scatter_tokens

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use"),
    triton_parts.needs_triton,
]
TOLERANCE = {torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def fresh(*shape, dtype):
    return torch.randn(shape, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("channels", [17, 320, 1280])
def test_biases_of_channels_are_torchs_sums_bit_for_bit(channels, dtype):
    op = SpatialInferenceBuilder().load()
    x, other, bias, second = *(fresh(2, 999, channels, dtype=dtype) for _ in range(2)), *fresh(2, channels, dtype=dtype)
    assert torch.equal(op.nhwc_bias_add(x, bias), x + bias)
    assert torch.equal(op.nhwc_bias_add_add(x, bias, other), (x + bias) + other)
    assert torch.equal(op.nhwc_bias_add_bias_add(x, bias, other, second), (x + bias) + (other + second))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("channels", [33, 1024])
def test_tokens_and_masks_are_gathered_and_put_back(channels, dtype):
    op = RandomLTDBuilder().load()
    whole = fresh(3, 500, channels, dtype=dtype).requires_grad_()
    numbers = torch.stack([torch.randperm(500, device="cuda")[:100] for _ in range(3)]).to(torch.int32)
    op.token_sort_(numbers, 500)
    places = numbers.long()[..., None].expand(-1, -1, channels)
    part = gather_tokens(whole, numbers)
    assert torch.equal(part, whole.gather(1, places))
    out = scatter_tokens(whole, 2 * part, numbers)
    assert torch.equal(out, whole.scatter(1, places, 2 * part))
    (gradient,) = torch.autograd.grad(out.sum(), whole)
    assert torch.equal(gradient, torch.ones_like(whole).scatter(1, places, 2.0))
    mask = fresh(3, 1, 500, 500, dtype=dtype)
    rows = numbers.long()
    expected = torch.stack([mask[i, 0][rows[i]][:, rows[i]] for i in range(3)])
    assert torch.equal(op.mask_gather_bert(mask, numbers[None])[0, :, 0], expected)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("columns", [77, 1024, 5120, 8192, 20000])
def test_norms_and_activations_agree_with_the_references(columns, dtype):
    op = InferenceCoreBuilder().load()
    x, residual, (gamma, beta) = *(fresh(37, columns, dtype=dtype) for _ in range(2)), fresh(2, columns, dtype=dtype)
    out, total, wide = torch.empty_like(x), torch.empty_like(x), x.double() + residual.double()
    allowed = {"rtol": 4 * TOLERANCE[dtype], "atol": 4 * TOLERANCE[dtype]}
    op.rms_pre_norm(out, total, x, residual, gamma, 1e-3)
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(out.double(), F.rms_norm(wide, (columns,), gamma.double(), 1e-3), **allowed)
    op.pre_layer_norm(total, out, x, residual, gamma, beta, 1e-3)
    centred = F.layer_norm(wide, (columns,), gamma.double(), beta.double(), 1e-3)
    torch.testing.assert_close(out.double(), centred, **allowed)
    wide = x.double() + beta.double()
    op.bias_activation(x, beta, 0)
    torch.testing.assert_close(x.double(), F.gelu(wide, approximate="tanh"), **allowed)
