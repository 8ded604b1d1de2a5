"""Products and softmax of block-sparse matrices, and squares of blocks, against dense matrices in float64."""

from __future__ import annotations

import pytest
import torch

from opforge.builders.cpu.sparse_attn import SparseAttnBuilder
from opforge.ops.sparse_attention import MatMul, Softmax

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 2e-1}


def random_layout(heads, rows, columns, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, (heads, rows, columns), generator=generator)


def stored(dense, layout, block):
    """Returns the blocks of a dense matrix that a layout has."""
    tiles = dense.unflatten(3, (-1, block)).unflatten(2, (-1, block)).transpose(3, 4)
    heads, rows, columns = layout.nonzero(as_tuple=True)
    return tiles[:, heads, rows, columns].contiguous()


def spread(layout, block):
    """Returns where the blocks of a layout are, in elements."""
    return layout.repeat_interleave(block, -2).repeat_interleave(block, -1)


def turned(tensor, is_transposed):
    return tensor.transpose(2, 3) if is_transposed else tensor


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("mode", ["sdd", "dsd", "dds"])
@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_products_and_gradients_are_those_of_dense_matrices(mode, trans_a, trans_b, dtype):
    block, heads = 16, 2
    m, n, k = (3 * block, 4 * block, 24) if mode == "sdd" else (3 * block, 4 * block, 2 * block)
    generator = torch.Generator().manual_seed(1)
    a = torch.randn((2, heads, *((k, m) if trans_a else (m, k))), generator=generator).to(dtype)
    b = torch.randn((2, heads, *((n, k) if trans_b else (k, n))), generator=generator).to(dtype)
    of = {"sdd": (m, n), "dsd": a.shape[2:], "dds": b.shape[2:]}[mode]
    layout = random_layout(heads, of[0] // block, of[1] // block)
    mask = spread(layout, block)
    doubles = [a.double() * mask if mode == "dsd" else a.double(), b.double() * mask if mode == "dds" else b.double()]
    doubles = [tensor.requires_grad_() for tensor in doubles]
    expected = turned(doubles[0], trans_a) @ turned(doubles[1], trans_b)
    operands = [stored(a, layout, block) if mode == "dsd" else a, stored(b, layout, block) if mode == "dds" else b]
    operands = [tensor.requires_grad_() for tensor in operands]
    product = MatMul(layout, block, mode, trans_a=trans_a, trans_b=trans_b)
    result = product(*operands)
    assert result.dtype == dtype
    if dtype == torch.bfloat16:
        with torch.autocast("cpu", dtype):
            assert torch.equal(product(*operands), result)
    dc = torch.randn(expected.shape, generator=generator).to(dtype)
    expected.backward(dc.double() * mask if mode == "sdd" else dc.double())
    result.backward(stored(dc, layout, block) if mode == "sdd" else dc)
    of_a, of_b = (tensor.grad for tensor in doubles)
    exact = [
        stored(expected, layout, block) if mode == "sdd" else expected,
        stored(of_a, layout, block) if mode == "dsd" else of_a,
        stored(of_b, layout, block) if mode == "dds" else of_b,
    ]
    for tensor, double in zip((result, operands[0].grad, operands[1].grad), exact, strict=True):
        assert tensor.shape == double.shape and (tensor - double).abs().max() < TOLERANCES[dtype]


def test_gradcheck_accepts_products_and_softmax():
    layout = random_layout(1, 2, 2, seed=4)
    dense, blocks = torch.randn(1, 1, 4, 3).double(), torch.randn(1, int(layout.sum()), 2, 2).double()
    for mode, operands in (("dsd", (blocks, dense)), ("dds", (dense.transpose(2, 3), blocks))):
        leaves = [tensor.contiguous().requires_grad_() for tensor in operands]
        assert torch.autograd.gradcheck(MatMul(layout, 2, mode), leaves)
    softmax = Softmax(layout, 2)
    assert torch.autograd.gradcheck(lambda x: softmax(x.clone(), scale=0.5), [blocks.requires_grad_()])


def test_leading_dimensions_may_be_missing_and_steps_do_not_matter(monkeypatch):
    layout = random_layout(1, 3, 3)[0]
    a, b = torch.randn(48, 8), torch.randn(8, 48)
    product = MatMul(layout, 16, "sdd")
    result = product(a, b)
    assert torch.allclose(result, stored((a @ b)[None, None], layout[None], 16)[0], atol=1e-5)
    monkeypatch.setattr("opforge.ops.sparse_attention.products.CHUNK", 1)
    assert torch.equal(product(a, b), result)
    sparse = MatMul(layout, 16, "dsd")
    assert sparse(result, b.t()).shape == (1, 48, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_softmax_of_rows_is_that_of_a_dense_matrix_and_in_place(dtype):
    block, layout = 16, random_layout(2, 3, 4)
    layout[0, 1] = 0
    generator = torch.Generator().manual_seed(2)
    dense = torch.randn(2, 2, 48, 64, generator=generator).to(dtype)
    positions = torch.randn(2, 2, 48, 64, generator=generator).to(dtype)
    keys = torch.randint(0, 2, (2, 64), generator=generator).to(dtype).masked_fill_(torch.arange(64) == 3, 1)
    pairs = torch.randint(0, 2, (48, 64), generator=generator).to(dtype)
    double = dense.double().requires_grad_()
    added = torch.zeros(2, 64).double().masked_fill_(keys == 0, -torch.inf)
    scores = (double * 0.3 + positions + added[:, None, None]).masked_fill(pairs == 0, -torch.inf)
    scores = scores.masked_fill(spread(layout, block) == 0, -torch.inf)
    exact = scores.softmax(-1).nan_to_num(0.0)
    dy = torch.randn(2, 2, 48, 64, generator=generator).to(dtype)
    (gradient,) = torch.autograd.grad(scores.softmax(-1), double, dy.double())
    leaf = stored(dense, layout, block).requires_grad_()
    x = leaf * 1
    y = Softmax(layout, block)(x, 0.3, positions, keys, pairs, key_padding_mask_mode="mul", attn_mask_mode="mul")
    assert y is x
    limit = {torch.float32: 2e-6, torch.float16: 2e-3}[dtype]
    assert (y - stored(exact, layout, block)).abs().max() < limit
    y.backward(stored(dy, layout, block))
    assert (leaf.grad - stored(gradient.nan_to_num(0.0), layout, block)).abs().max() < limit


def test_squares_of_blocks_cover_a_layout_once():
    op = SparseAttnBuilder().load()
    for seed in range(5):
        layout = random_layout(3, 8, 8, seed).int()
        layout[0, 2:6, 1:5] = 1
        numbers = (layout.flatten().cumsum(0) - 1).view_as(layout)
        left, seen = layout.clone(), []
        for width, blocks in op.sdd_segment(left, 4):
            for square in blocks.view(-1, width, width, 4):
                heads, rows, columns, number = square.unbind(-1)
                assert (heads == heads[0, 0]).all()
                assert (rows == rows[:, :1]).all() and (columns == columns[:1]).all()
                assert (rows.diff(dim=0) > 0).all() and (columns.diff(dim=1) > 0).all()
                assert torch.equal(numbers[heads.long(), rows.long(), columns.long()], number.long())
                seen += number.flatten().tolist()
        assert sorted(seen) == list(range(int(layout.sum()))) and not left.any()
    (width, blocks), *others = op.sdd_segment(torch.ones(1, 4, 4, dtype=torch.int32), 4)
    assert width == 4 and not others and blocks[:, 3].tolist() == list(range(16))
    assert op.sdd_segment(torch.zeros(1, 2, 2, dtype=torch.int32), 2) == []
    (width, blocks), *others = op.sdd_segment(torch.ones(1, 4, 4, dtype=torch.int32), 1 << 40)  # takes no such memory
    assert width == 4 and not others and blocks[:, 3].tolist() == list(range(16))
    with pytest.raises(RuntimeError, match=r"layout has shape \(1, 2, 2\), expected contiguous int32"):
        op.sdd_segment(torch.ones(1, 2, 2, dtype=torch.long), 2)


X = torch.ones(1, 4, 16, 16)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m("ssd"), "mode is 'ssd', expected 'sdd', 'dsd' or 'dds'"),
        (
            lambda m: m("dsd")(X[:, :3], X),
            "a has shape (1, 3, 16, 16), expected a last part of (4, 16, 16): its blocks",
        ),
        (lambda m: m("dsd")(X, torch.ones(1, 1, 16, 8)), "b has 16 rows, expected 32, the columns of a"),
        (
            lambda m: m("sdd")(torch.ones(1, 1, 16, 8), torch.ones(1, 1, 8, 32)),
            "the product is 16 x 32, expected 32 x 32, as the layout covers",
        ),
        (
            lambda m: m("sdd")(torch.ones(1, 2, 32, 8), torch.ones(1, 2, 8, 32)),
            "a and b have 2 and 2 heads, expected 1, those of the layout",
        ),
        (
            lambda m: m("sdd")(torch.ones(2, 1, 32, 8), torch.ones(1, 1, 8, 32)),
            "b has a batch of 1, expected that of a, 2",
        ),
        (
            lambda m: m("sdd")(torch.ones(32, 8), torch.ones(8, 32).half()),
            "b is torch.float16, expected the dtype of a, torch.float32: convert it with .to(a.dtype)",
        ),
        (
            lambda m: m("sdd")(torch.ones(32, 8), torch.ones(8, 32, device="meta")),
            "b is on meta, expected cpu, where a is: move it with .to()",
        ),
        (
            lambda _: Softmax(torch.ones(1, 2, 2), 16)(X[:, 1:].clone()),
            "x has shape (1, 3, 16, 16), expected a last part of (4, 16, 16): its blocks",
        ),
        (
            lambda _: Softmax(torch.ones(2), 16),
            "layout has shape (2,), expected [heads, rows, columns] or [rows, columns]",
        ),
    ],
)
def test_wrong_arguments_are_rejected(call, message):
    with pytest.raises((ValueError, NotImplementedError)) as caught:
        call(lambda mode: MatMul(torch.ones(1, 2, 2), 16, mode))
    assert str(caught.value) == message
