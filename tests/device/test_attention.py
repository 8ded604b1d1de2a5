"""Attention on a GPU: Evoformer, lists of blocks, pages. tests/compile/triton/test_attention.py needs no GPU."""

from __future__ import annotations

import pytest
import torch
from support.attention.float64_errors import block_sparse
from support.gpu import triton_parts

from opforge.ops import evoformer_attention, reference
from opforge.ops.sparse_attention import sparse_attention
from opforge.ops.triton import paged_attention

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use"),
    triton_parts.needs_triton,
]
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2}


def fresh(*shape, dtype):
    return torch.randn(shape, device="cuda").to(dtype).requires_grad_()


def both_ways(function, exact, tensors):
    """Compares a function and its gradients with float64, and two runs with each other."""
    doubles = [tensor.detach().double().requires_grad_() for tensor in tensors]
    out, expected = function(*tensors), exact(*doubles)
    allowed = TOLERANCE[out.dtype]
    torch.testing.assert_close(out.double(), expected, rtol=allowed, atol=allowed)
    dout = torch.randn_like(out)
    gradients = torch.autograd.grad(out, tensors, dout)
    for gradient, double in zip(gradients, torch.autograd.grad(expected, doubles, dout.double()), strict=True):
        torch.testing.assert_close(gradient.double(), double, rtol=4 * allowed, atol=4 * allowed)
    again = function(*tensors)
    assert torch.equal(again, out) and all(map(torch.equal, torch.autograd.grad(again, tensors, dout), gradients))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("length", "size"), [(1, 16), (17, 32), (257, 40), (512, 64), (100, 128), (65, 256)])
def test_evoformer_attention_agrees_with_the_reference(length, size, dtype):
    biases = [fresh(1, 3, 1, 1, length, dtype=dtype), fresh(1, 1, 2, length, length, dtype=dtype)]
    both_ways(
        lambda q, k, v, *biases: evoformer_attention(q, k, v, biases),
        lambda q, k, v, *biases: reference.attention(q, k, v, biases)[0],
        [*(fresh(1, 3, length, 2, size, dtype=dtype) for _ in range(3)), *biases],
    )


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("block", [16, 32, 64, 128])
def test_sparse_attention_agrees_with_the_reference(block, dtype):
    layout = (torch.rand(2, 4, 4) < 0.5).long()
    layout[:, range(4), range(4)] = 1
    both_ways(
        lambda q, k, v: sparse_attention(q, k, v, layout, block),
        lambda q, k, v: block_sparse(q, k, v, layout=layout.cuda(), block=block),
        [fresh(2, 2, 4 * block, 64, dtype=dtype) for _ in range(3)],
    )


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_attention_over_pages_agrees_with_the_reference(dtype):
    tokens, heads, group, size = 300, 2, 4, 64
    pages = torch.randperm(6, device="cuda").to(torch.int32)[:5]
    cache, q = (fresh(*shape, dtype=dtype).detach() for shape in ((6, 64, 2, heads, size), (7, heads * group * size)))
    address = torch.tensor([pages.data_ptr()]).view(torch.int32).tolist()
    atoms = torch.tensor([[*address, 0, 7, 5, tokens, tokens - 7, 0]], dtype=torch.int32, device="cuda")
    out = torch.full_like(q, float("nan"))
    paged_attention.flash_attn_by_atoms(out, q, cache[:, :, 0], cache[:, :, 1], atoms, size**-0.5, True)
    keys, values = cache.double()[pages.long()].flatten(0, 1)[:tokens].unbind(1)
    scores = torch.einsum("thgd,khd->hgtk", q.double().view(7, heads, group, size), keys) * size**-0.5
    last = tokens - 7 + torch.arange(7, device="cuda")
    scores = scores.masked_fill(torch.arange(tokens, device="cuda")[None] > last[:, None], -torch.inf)
    expected = torch.einsum("hgtk,khd->thgd", scores.softmax(-1), values).flatten(1)
    torch.testing.assert_close(out.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
