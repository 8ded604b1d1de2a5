"""Block-sparse self-attention on the CPU: values and gradients, masks, DeepSpeed's classes, errors."""

from __future__ import annotations

import platform
from types import SimpleNamespace

import pytest
import torch
from support import cases
from support.attention.float64_errors import block_sparse, check_errors, randoms
from support.attention.peak_memory import peak_of

from opforge.builders.cpu.sparse_attn import SparseAttnBuilder
from opforge.ops import attention
from opforge.ops.sparse_attention import (
    BertSparseSelfAttention,
    BigBirdSparsityConfig,
    SparseSelfAttention,
    sparse_attention,
)
from opforge.ops.sparse_attention.layouts import block_lists

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]


ANOTHER_LEVEL = pytest.mark.long("builds the op for one level of the CPU more; test_evoformer.py tries the core at two")


@pytest.fixture(scope="module", params=["", pytest.param("x86-64", marks=ANOTHER_LEVEL)])
def op(request):
    """The op for levels of the CPU. test_evoformer.py tries the core at the others."""
    if request.param and platform.machine() != "x86_64":
        pytest.skip(f"{request.param} is not this machine's architecture")
    builder = SparseAttnBuilder(target=f"cpu:{request.param}" if request.param else None)
    compatible = builder.is_compatible()
    if not compatible:
        pytest.skip(f"this CPU does not run {request.param}: {compatible}")
    return builder.load()


@pytest.fixture
def used_op(op, monkeypatch):
    """Makes `sparse_attention` use the op."""
    monkeypatch.setattr(attention, "host_op", lambda _builder: op)
    return op


def random_layout(heads, rows, columns, share=0.5):
    generator = torch.Generator().manual_seed(3)
    return (torch.rand(heads, rows, columns, generator=generator) < share).long()


def inputs(batch, heads, length, size, dtype=torch.float32, keys=None):
    keys = length if keys is None else keys
    shapes = [(batch, heads, length, size), *[(batch, heads, keys, size)] * 2]
    return [tensor.requires_grad_() for tensor in randoms(shapes, dtype)]


@pytest.mark.parametrize("op", [pytest.param("x86-64", marks=ANOTHER_LEVEL)], indirect=True)
def test_the_cases_hold_on_another_level(op):
    """The contract tries them on this CPU's own level alone."""
    cases.check_results(SparseAttnBuilder, op)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_results_and_gradients_are_as_exact_as_torchs(used_op, dtype):
    block, size, layout = 32, 24, random_layout(2, 5, 5)
    layout[1, 2] = 0  # these queries see nothing
    check_errors(
        lambda q, k, v: sparse_attention(q, k, v, layout, block),
        lambda q, k, v: block_sparse(q, k, v, layout=layout, block=block),
        inputs(2, 2, 5 * block, size, dtype),
    )


def test_a_long_sequence_and_keys_of_another_length(used_op):
    layout = random_layout(1, 8, 6)
    check_errors(
        lambda q, k, v: sparse_attention(q, k, v, layout, 16),
        lambda q, k, v: block_sparse(q, k, v, layout=layout, block=16),
        inputs(1, 1, 128, 16, keys=96),
    )
    layout = BigBirdSparsityConfig(1, block=64).make_layout(2048)
    check_errors(
        lambda q, k, v: sparse_attention(q, k, v, layout, 64),
        lambda q, k, v: block_sparse(q, k, v, layout=layout, block=64),
        inputs(1, 1, 2048, 16),
    )


@pytest.mark.parametrize("heads", [1, 2])
def test_masks_and_positions(used_op, heads):
    layout = random_layout(2, 4, 4)
    q, k, v = inputs(2, 2, 64, 16)
    positions, pairs = randoms([(2, heads, 64, 64), (64, 64)], torch.float32, seed=2)
    keys = torch.zeros(2, 64).masked_fill_(torch.arange(64) % 5 == 0, -torch.inf)
    keys[0, :40] = -1e4
    pairs = (pairs > 0).float()

    def ours(q, k, v, positions):
        masks = {"rpe": positions, "key_padding_mask": keys, "attn_mask": pairs}
        return sparse_attention(q, k, v, layout, 16, **masks)

    def theirs(q, k, v, positions):
        hidden = torch.zeros(64, 64, dtype=q.dtype).masked_fill_(pairs == 0, -torch.inf)
        biases = (positions[:, None], keys[:, None, None, None].to(q.dtype), hidden)
        return block_sparse(q, k, v, *biases, layout=layout, block=16)

    check_errors(ours, theirs, [q, k, v, positions.requires_grad_()])
    # The mode of each mask: 0 hides a key, any other number changes nothing.
    visible = (keys > -1e3).float()
    modes = {"key_padding_mask_mode": "mul", "attn_mask_mode": "add"}
    out = sparse_attention(q, k, v, layout, 16, key_padding_mask=visible, attn_mask=-pairs, **modes)
    hidden = torch.zeros(2, 1, 1, 1, 64).masked_fill_(visible[:, None, None, None] == 0, -torch.inf)
    assert torch.allclose(out, block_sparse(q, k, v, hidden, -pairs, layout=layout, block=16), atol=2e-6)


def test_gradcheck_accepts_the_gradients():
    layout = random_layout(1, 2, 2, 0.8)
    with pytest.warns(UserWarning, match="not a double precision"):
        assert torch.autograd.gradcheck(
            lambda q, k, v: sparse_attention(q, k, v, layout, 16),
            inputs(1, 1, 32, 2),
            eps=1e-2,
            atol=2e-3,
            rtol=1e-2,
        )


def test_opcheck_and_torch_compile_accept_the_ops():
    op = SparseAttnBuilder().load()
    layout = random_layout(2, 3, 3)
    lists = block_lists(layout)
    q, k, v = (tensor.detach().transpose(1, 2).unsqueeze(1) for tensor in inputs(1, 2, 48, 8))
    out, log_sums = torch.empty_like(q), torch.empty(1, 1, 2, 96)
    utils = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    blocks = (lists.offsets, lists.columns, 16, 0.5)
    results = [torch.empty_like(tensor) for tensor in (q, k, v)]
    arguments = (*results, [], q, q, k, v, out, log_sums, torch.empty_like(log_sums), [], 0, *blocks)
    torch.library.opcheck(op.sparse_attention_backward_, arguments, test_utils=utils)
    numbers = torch.zeros(2, 3, 3, dtype=torch.int32)
    squares, counts = torch.empty(2, 9, 4, dtype=torch.int32), torch.empty(2, 1, 1, dtype=torch.int32)
    torch.library.opcheck(op.sparse_segment_, (squares, counts, layout.int(), numbers, 1), test_utils=utils)
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    options = (lists.offsets, lists.columns, 16, 0, 0.5, False)
    torch.library.opcheck(torch.ops.opforge_attention.attention.default, (*leaves, [], *options))

    def block(q, k, v):
        return sparse_attention(q * 2, k, v, layout, 16, lists=lists).sum(0)

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    leaves = inputs(1, 2, 48, 8)
    expected = torch.autograd.grad(block(*leaves).sum(), leaves)
    assert torch.equal(compiled(*leaves), block(*leaves))
    assert all(map(torch.equal, torch.autograd.grad(compiled(*leaves).sum(), leaves), expected))


@pytest.mark.parametrize(("length", "share"), [(16_384, 0.4), (65_536, 0.03)])
def test_memory_of_a_long_forward_is_its_results_and_64_mib_at_most(length, share):
    """The scores of its blocks alone would take 400 and 500 MB."""
    q = torch.randn(1, 1, length, 16)
    layout = random_layout(1, length // 64, length // 64, share)
    lists = block_lists(layout)
    sparse_attention(q[:, :, :64], q[:, :, :64], q[:, :, :64], layout[:, :1, :1], 64)
    assert peak_of(lambda: sparse_attention(q, q, q, layout, 64, lists=lists)) < q.nbytes + (64 << 20)


Q = torch.ones(1, 2, 32, 8)
LAYOUT = torch.ones(2, 2, 2, dtype=torch.long)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sparse_attention(Q, Q, Q, LAYOUT, 8), "block is 8, expected 16, 32, 64 or 128"),
        (
            lambda: sparse_attention(Q[:, :, :31], Q, Q, LAYOUT, 16),
            "query has 31 tokens, expected a multiple of the block, 16: pad it",
        ),
        (
            lambda: sparse_attention(Q, Q, Q, LAYOUT[:, :1], 16),
            "layout has shape (2, 1, 2), expected (2, 2, 2): it must cover the whole length",
        ),
        (
            lambda: sparse_attention(Q, Q, Q, LAYOUT, 16, attn_mask=torch.ones(32, 32), attn_mask_mode="or"),
            "attn_mask_mode is 'or', expected 'add' or 'mul'",
        ),
        (
            lambda: sparse_attention(Q, Q, Q, LAYOUT, 16, attn_mask=torch.ones(32, 32).half()),
            "attn_mask is torch.float16, expected torch.float32: convert it with .to()",
        ),
        (
            lambda: sparse_attention(Q[0], Q, Q, LAYOUT, 16),
            "query has shape (2, 32, 8), expected [batch, heads, length, size]",
        ),
        (
            lambda: SparseSelfAttention(max_seq_length=64).get_layout(80),
            "the sequence has 80 tokens, expected at most 64: pass a larger max_seq_length",
        ),
        (
            lambda: SparseSelfAttention(max_seq_length=64).get_layout(40),
            "the sequence has 40 tokens, expected a multiple of the block, 16: pad it",
        ),
        (
            lambda: BertSparseSelfAttention(SimpleNamespace(hidden_size=30, num_attention_heads=4)),
            "hidden_size is 30, expected a multiple of num_attention_heads, 4",
        ),
    ],
)
def test_wrong_arguments_are_rejected(call, message):
    with pytest.raises(ValueError) as caught:
        call()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("offsets", "columns", "block", "message"),
    [
        ([0, 1, 2], [0, 0], 12, "block is 12, expected 16, 32, 64 or 128"),
        ([0, 1, 2], [0, 0], 64, "the lengths are 32 and 32, expected multiples of the block, 64: pad the sequences"),
        (
            [0, 1, 2],
            [0, 0],
            16,
            "offsets has 3 elements, expected 5: one for each of the 2 rows of blocks of each of the 2 heads, and the "
            "end. The layout must cover the whole length",
        ),
        ([0, 1, 2, 2, 3], [0, 0], 16, "offsets begins with 0 and ends with 3, expected 0 and the number of columns, 2"),
        ([0, 2, 1, 2, 2], [0, 1], 16, "offsets[2] is 1, expected a number from 2 to 2"),
        (
            [0, 1, 2, 2, 2],
            [0, 2],
            16,
            "columns[1] is 2, expected a number from 0 to less than 2: the columns of a row ascend",
        ),
        (
            [0, 2, 2, 2, 2],
            [1, 0],
            16,
            "columns[1] is 0, expected a number from 2 to less than 2: the columns of a row ascend",
        ),
    ],
)
def test_wrong_lists_are_rejected_before_anything_is_written(op, offsets, columns, block, message):
    q = Q.transpose(1, 2).unsqueeze(1)
    out, lists = torch.full_like(q, 7.0), [torch.tensor(part, dtype=torch.int32) for part in (offsets, columns)]
    with pytest.raises(RuntimeError) as caught:
        op.sparse_attention_(out, torch.empty(1, 1, 2, 32), q, q, q, [], 0, *lists, block, 1.0)
    assert str(caught.value) == message
    assert (out == 7).all()
