"""The attention kernels by Triton's interpreter, against float64: no GPU has run them."""

from __future__ import annotations

import pytest
import torch
from support import tiers
from support.attention.float64_errors import block_sparse
from support.gpu.triton_cases import INTERPRETED, as_doubles
from support.ragged.batches import RaggedBatch

from opforge.builders.triton import attention as builders
from opforge.builders.triton.ragged import RaggedOpsBuilder
from opforge.ops import attention as core
from opforge.ops import evoformer_attention, host_op, reference
from opforge.ops.sparse_attention import sparse_attention
from opforge.ops.triton import attention, paged_attention

pytestmark = INTERPRETED
FP32, FP16 = torch.float32, torch.float16
ALLOWED = {FP32: 5e-6, FP16: 3e-3}
NAN, INF = float("nan"), float("inf")
LONG = tiers.is_long()


class Evoformer(builders.EvoformerAttnBuilder):
    """The op with kernels for float32 too, which show more digits."""

    kernels = list(builders.dense_kernels(("fp32", "fp16")))


class Sparse(builders.SparseAttnBuilder):
    """The op with kernels for float32 too."""

    kernels = list(builders.block_kernels(("fp32", "fp16")))


class Ragged(RaggedOpsBuilder):
    """The op with kernels for float32 too."""

    kernels = list(builders.paged_kernels(("fp32", "fp16")))


@pytest.fixture(autouse=True)
def on_device(interpreted, monkeypatch):
    """Makes tensors of the host use the kernels of a GPU, in new memory that holds NaN."""
    for module in (core, host_op):
        monkeypatch.setattr(module, "on_host", lambda tensor: False)
    monkeypatch.setattr(attention, "DTYPES", (FP32, FP16))
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    for builder in (Evoformer, Sparse, Ragged):
        builder("cuda:sm_90").load()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def fresh(*shape, dtype=FP32):
    return torch.randn(shape).to(dtype).requires_grad_()


def both_ways(function, exact, tensors):
    """Compares a function and its gradients with the reference, and two runs with each other."""
    doubles = as_doubles(*tensors)
    out, expected = function(*tensors), exact(*doubles)
    allowed = ALLOWED[tensors[0].dtype]
    torch.testing.assert_close(out.double(), expected, rtol=allowed, atol=allowed)
    dout = torch.randn(out.shape).to(out.dtype)
    gradients = torch.autograd.grad(out, tensors, dout)
    for gradient, double in zip(gradients, torch.autograd.grad(expected, doubles, dout.double()), strict=True):
        torch.testing.assert_close(gradient.double(), double, rtol=4 * allowed, atol=4 * allowed)
    again = function(*tensors)
    assert torch.equal(again, out) and all(map(torch.equal, torch.autograd.grad(again, tensors, dout), gradients))


def evoformer(q, k, v, *biases):
    return evoformer_attention(q, k, v, biases)


def exact(q, k, v, *biases):
    return reference.attention(q, k, v, biases)[0]


LENGTHS = [1, 15, 17, 65] + ([1025] if LONG else [])


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_results_and_gradients_at_awkward_lengths(length, dtype):
    heads = 2 if length < 64 else 1
    tensors = [fresh(1, 1, length, heads, 16, dtype=dtype) for _ in range(3)]
    biases = [fresh(1, 1, 1, 1, length, dtype=dtype), fresh(1, 1, heads, length, length, dtype=dtype)]
    both_ways(evoformer, exact, [*tensors, *biases])


@pytest.mark.parametrize("size", [1, 20, 128] + ([64, 80, 256] if LONG else []))
def test_sizes_of_heads(size):
    both_ways(evoformer, exact, [fresh(1, 1, 33, 1, size) for _ in range(3)])


@pytest.mark.parametrize(
    "sizes", [(2, 1, 1, 19)] + ([(1, 1, 1, 1), (1, 2, 2, 19), (2, 2, 2, 1)] if LONG else []), ids=str
)
def test_biases_are_broadcast_along_each_dimension(sizes):
    both_ways(evoformer, exact, [*(fresh(2, 2, 19, 2, 16) for _ in range(3)), fresh(*sizes, 19)])


@pytest.mark.parametrize(("length", "keys"), [(70, 33), (33, 70), (64, 64)])
def test_causal_attention_of_another_length(length, keys):
    both_ways(
        lambda q, k, v: core.attention(q, k, v, causal=True)[0],
        lambda q, k, v: reference.attention(q, k, v, causal=True)[0],
        [fresh(1, 1, length, 2, 16), *(fresh(1, 1, keys, 2, 16) for _ in range(2))],
    )


def test_tensors_with_gaps_and_odd_addresses():
    packed = torch.randn(1, 2, 21, 3, 2, 40)
    q, k, v = (packed[:, :, :, i, :, 1:17].detach().requires_grad_() for i in range(3))
    both_ways(evoformer, exact, [q, k, v])


def test_lengths_of_zero_give_zeros_and_empty_results():
    q = fresh(1, 2, 0, 2, 16)
    assert evoformer(q, q, q).shape == q.shape
    q, k = fresh(1, 2, 3, 2, 16), fresh(1, 2, 0, 2, 16)
    out = evoformer(q, k, k)
    assert torch.equal(out, torch.zeros_like(q))
    gradients = torch.autograd.grad(out.sum(), (q, k))
    assert not gradients[0].any() and gradients[1].shape == k.shape
    for bias in (fresh(1, 1, 1, 1, 0), fresh(1, 2, 2, 3, 0)):
        out = evoformer(q, k, k, bias)
        assert torch.equal(out, torch.zeros_like(q))
        assert torch.autograd.grad(out.sum(), bias)[0].shape == bias.shape


def test_masked_keys_nan_and_infinity():
    q, k, v = (fresh(1, 2, 21, 2, 16) for _ in range(3))
    keys, rows = torch.zeros(1, 2, 1, 1, 21), torch.zeros(1, 1, 2, 21, 21)
    keys[0, 0, :, :, 3:] = -INF
    rows[0, 0, 1, 4] = -INF
    out = evoformer(q, k, v, keys, rows)
    assert not out[0, :, 4, 1].any() and not out.isnan().any()
    # The reference has NaN as the gradients of a query that sees no key.
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    assert not gradients[0][0, :, 4, 1].any() and not any(gradient.isnan().any() for gradient in gradients)
    both_ways(lambda *tensors: evoformer(*tensors, keys), lambda *t: exact(*t, keys), [q, k, v])
    with torch.no_grad():
        q[0, 0, 2, 0, 0] = NAN
        v[0, 1, 5, 1, 3] = INF
    out = evoformer(q, k, v, keys, rows)
    assert out[0, 0, 2, 0].isnan().all() and not out[0, 0, 3:].isnan().any()
    assert not out[0, 1, :, 0].isinf().any() and (out[0, 1, 6:, 1, 3] == INF).all()


def test_a_row_that_hides_all_keys_by_the_lowest_number_has_the_mean_of_the_values():
    tensors = [fresh(1, 1, 40, 1, 16) for _ in range(3)]  # keys of two tiles
    mask, some = torch.zeros(1, 1, 1, 40, 40), torch.zeros(1, 1, 1, 1, 40)
    mask[..., :3, :] = some[..., 5:20] = torch.finfo(torch.float32).min
    out = evoformer(*tensors, mask)
    torch.testing.assert_close(out[0, 0, 0, 0], tensors[2][0, 0, :, 0].mean(0))
    both_ways(lambda *t: evoformer(*t, mask), lambda *t: exact(*t, mask), tensors)
    both_ways(lambda *t: evoformer(*t, some), lambda *t: exact(*t, some), tensors)
    q, layout = fresh(1, 1, 64, 16), torch.ones(1, 4, 4, dtype=torch.int64)
    hidden = torch.full((1, 64), torch.finfo(torch.float32).min)
    both_ways(
        lambda q: sparse_attention(q, q, q, layout, 16, key_padding_mask=hidden),
        lambda q: block_sparse(q, q, q, hidden.double()[:, None, None, None], layout=layout, block=16),
        [q],
    )


def test_shares_of_keys_add_up_to_one_at_large_scores():
    """Scores are integers, which each order of a product's sum gives, and each key is there twice: log(2) counts."""
    q, k = (torch.randint(-8, 9, (1, 1, 40, 1, 16)).to(FP32) for _ in range(2))
    q, k, v = (q * 2**13).requires_grad_(), k[:, :, :20].repeat(1, 1, 2, 1, 1).requires_grad_(), fresh(1, 1, 40, 1, 16)
    dout = torch.rand(q.shape)
    (dv,) = torch.autograd.grad(evoformer(q, k, v), v, dout)
    torch.testing.assert_close(dv.sum(2), dout.sum(2), rtol=2e-6, atol=0)


def test_biases_of_whole_rows_are_not_copied_and_results_are_written_in_place():
    q, bias = torch.randn(1, 1, 32, 2, 16), torch.randn(1, 1, 2, 32, 48)[..., :32]
    options = attention.Options([bias], None, None, 0, 0, 0.25, False)
    (taken,) = attention.Call(q, q, q, options).biases
    assert taken.data_ptr() == bias.data_ptr()
    out = torch.empty_like(q)
    assert attention.forward(q, q, q, options, out)[0].data_ptr() == out.data_ptr()
    given = [torch.empty_like(q) for _ in range(3)] + [torch.empty(bias.shape)]
    sums = attention.forward(q, q, q, options)[1]
    results = attention.backward(q, q, q, q, out, sums, [True], options, given)
    assert [tensor.data_ptr() for tensor in results] == [tensor.data_ptr() for tensor in given]
    torch.testing.assert_close(out.double(), exact(*(q.double(),) * 3, bias.double()), rtol=5e-6, atol=5e-6)


@pytest.mark.parametrize(
    ("block", "heads", "blocks", "size", "dtype"),
    [(16, 2, 3, 64, FP32), (64, 1, 2, 64, FP16)]
    + ([(32, 1, 3, 20, FP32), (128, 1, 2, 128, FP32), (64, 2, 3, 256, FP32)] if LONG else []),
)
def test_lists_of_blocks_with_masks(block, heads, blocks, size, dtype):
    layout = (torch.rand(heads, blocks, blocks) < 0.5).long()
    layout[:, 0, 0], layout[:, 1] = 1, 0
    length = blocks * block
    keys, pairs = torch.zeros(2, length, dtype=dtype), (torch.rand(length, length) < 0.8).to(dtype)
    keys[:, -5:] = -INF
    hidden = torch.where(pairs == 0, -INF, 0.0).double()
    both_ways(
        lambda q, k, v: sparse_attention(q, k, v, layout, block, key_padding_mask=keys, attn_mask=pairs),
        lambda q, k, v: block_sparse(
            q, k, v, keys.double()[:, None, None, None], hidden[None, None, None], layout=layout, block=block
        ),
        [fresh(2, heads, length, size, dtype=dtype) for _ in range(3)],
    )


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("size", "heads", "group"), [(16, 1, 1), (80, 2, 3), (64, 1, 8), (256, 1, 1)])
def test_attention_over_pages(size, heads, group, causal):
    batch = RaggedBatch([(1, 0), (5, 30), (9, 2), (1, 63)], block=8, seed=1)
    q, cache = torch.randn(batch.tokens, heads * group * size), torch.randn(batch.pages, 8, 2, heads, size)
    out, atoms, start = torch.full_like(q, NAN), [], 0
    for number, (tokens, seen) in enumerate(batch.sequences):
        address = torch.tensor([batch.lists[number].data_ptr()]).view(torch.int32).tolist()
        atoms.append([*address, start, tokens, -(-(seen + tokens) // 8), seen + tokens, seen, 0])
        start += tokens
    described = torch.tensor(atoms, dtype=torch.int32)
    paged_attention.flash_attn_by_atoms(out, q, cache[:, :, 0], cache[:, :, 1], described, size**-0.5, causal)
    for (_, _, start, tokens, _, extent, seen, _), pages in zip(atoms, batch.lists, strict=True):
        keys, values = cache.double()[pages.long()].flatten(0, 1)[:extent].unbind(1)
        queries = q[start : start + tokens].double().view(tokens, heads, group, size)
        scores = torch.einsum("thgd,khd->hgtk", queries, keys) * size**-0.5
        if causal:
            last = seen + torch.arange(tokens)
            scores = scores.masked_fill(torch.arange(extent)[None] > last[:, None], -INF)
        expected = torch.einsum("hgtk,khd->thgd", scores.softmax(-1), values).flatten(1)
        torch.testing.assert_close(out[start : start + tokens].double(), expected, rtol=5e-6, atol=5e-6)


def test_deepspeeds_functions_take_its_arguments():
    q, k, v = (torch.randn(1, 3, 33, 2, 16).half() for _ in range(3))
    keys, rows, none = torch.randn(1, 3, 1, 1, 33).half(), torch.randn(1, 1, 2, 33, 33).half(), q.new_empty(0)
    out, log_sums = torch.empty_like(q), torch.empty(3, 2, 64)
    op = Evoformer("cuda:sm_90").load()
    op.attention(q, k, v, keys, rows, out, log_sums)
    expected, sums = reference.attention(*(tensor.double() for tensor in (q, k, v)), (keys.double(), rows.double()))
    torch.testing.assert_close(out.double(), expected, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(log_sums[..., :33].double(), sums[0], rtol=1e-5, atol=1e-5)
    gradients = [torch.empty_like(tensor) for tensor in (q, k, v)] + [torch.empty(bias.shape) for bias in (keys, rows)]
    arguments = (torch.ones_like(q), q, k, v, out, log_sums, torch.empty_like(log_sums))
    op.attention_bwd(*arguments, keys, rows, *gradients)
    doubles = [tensor.double().requires_grad_() for tensor in (q, k, v, keys, rows)]
    for gradient, double in zip(gradients, torch.autograd.grad(exact(*doubles).sum(), doubles), strict=True):
        torch.testing.assert_close(gradient.double(), double, rtol=1e-2, atol=1e-2)
    op.attention_bwd(*arguments, none, rows, *gradients[:3], none.float(), none.float())


Q = torch.ones(1, 2, 32, 2, 16)
LISTS = {"offsets": torch.zeros(5, dtype=torch.int32), "columns": torch.zeros(0, dtype=torch.int32), "block": 16}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: core.attention(Q.double(), Q.double(), Q.double()), TypeError, "q is torch.float64 on cpu, expected"),
        (
            lambda: core.attention(*[torch.ones(1, 1, 3, 1, 257)] * 3),
            ValueError,
            "heads of size 257, expected 1 to 256",
        ),
        (lambda: core.attention(Q[0], Q, Q), ValueError, "expected .outer, inner, length, heads, size"),
        (lambda: core.attention(Q, Q[:, :1], Q), ValueError, r"k has shape \(1, 1, 32, 2, 16\), expected \[1, 2, keys"),
        (lambda: core.attention(Q, Q, Q[:, :, :3]), ValueError, r"v has shape \(1, 2, 3, 2, 16\), expected \[1, 2, 32"),
        (lambda: core.attention(Q, Q.half(), Q), TypeError, "k is torch.float16, expected q's dtype, torch.float32"),
        (lambda: core.attention(Q, Q, Q, [Q[..., :3]]), ValueError, r"biases\[0\] has shape .* expected \(1, 2, 2, 32"),
        (
            lambda: core.attention(Q, Q, Q, [Q[:, :, :1, :1, :1]] * 3),
            ValueError,
            "there are 3 biases, expected at most 2",
        ),
        (lambda: core.attention(Q, Q, Q, **LISTS | {"block": 8}), ValueError, "block is 8, expected 16, 32, 64 or 128"),
        (lambda: core.attention(Q[:, :, :9], Q, Q, **LISTS), ValueError, "q has 9 tokens, expected a multiple of the"),
        (lambda: core.attention(Q, Q, Q, **LISTS | {"offsets": LISTS["offsets"][1:]}), ValueError, "offsets has 4 num"),
        (
            lambda: core.attention(Q, Q, Q, **LISTS | {"columns": LISTS["columns"].long()}),
            TypeError,
            "columns is torch.int64, expected torch.int32",
        ),
    ],
)
def test_errors_name_what_does_not_fit(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"o": torch.full((1, 3, 32, 2, 16), 7.0).half()}, ValueError, r"out has shape \(1, 3, 32, 2, 16\), expected"),
        (
            {"o": torch.full((1, 3, 33, 2, 16), 7.0)},
            TypeError,
            "out is torch.float32, expected q's dtype, torch.float16",
        ),
        (
            {"lse": torch.full((3, 2, 32), 7.0)},
            ValueError,
            r"log_sums is torch.float32 of shape \(3, 2, 32\) on cpu, exp",
        ),
        ({"k": torch.ones(1, 3, 33, 2, 16, device="meta").half()}, TypeError, "k is on meta, expected cpu, where q is"),
    ],
)
def test_errors_of_deepspeeds_function_come_before_anything_is_written(changes, error, message):
    q = torch.ones(1, 3, 33, 2, 16).half()
    given = {"q": q, "k": q, "v": q, "bias1": q.new_empty(0), "bias2": q.new_empty(0)}
    given |= {"o": torch.full_like(q, 7.0), "lse": torch.full((3, 2, 64), 7.0)} | changes
    with pytest.raises(error, match=message):
        Evoformer("cuda:sm_90").load().attention(*given.values())
    assert (given["o"] == 7).all() and (given["lse"] == 7).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gk": torch.full((1, 3, 32, 2, 16), 7.0).half()}, r"dk has shape \(1, 3, 32, 2, 16\), expected \(1, 3, 33"),
        (
            {"gb1": torch.full((1, 3, 1, 1, 32), 7.0)},
            r"bias_gradients\[0\] has shape \(1, 3, 1, 1, 32\) on cpu, expected",
        ),
    ],
)
def test_errors_of_deepspeeds_gradients_come_before_anything_is_written(changes, message):
    q, bias, none = torch.ones(1, 3, 33, 2, 16).half(), torch.ones(1, 3, 1, 1, 33).half(), torch.empty(0)
    given = {"go": q, "q": q, "k": q, "v": q, "o": q, "lse": torch.ones(3, 2, 64), "delta": torch.ones(3, 2, 64)}
    given |= {"bias1": bias, "bias2": none} | {name: torch.full_like(q, 7.0) for name in ("gq", "gk", "gv")}
    given |= {"gb1": torch.full(bias.shape, 7.0), "gb2": none} | changes
    with pytest.raises(ValueError, match=message):
        Evoformer("cuda:sm_90").load().attention_bwd(*given.values())
    assert all((given[name] == 7).all() for name in ("gq", "gk", "gv", "gb1"))


def test_biases_of_lists_have_no_gradients():
    q, layout = fresh(1, 1, 32, 16), torch.ones(1, 2, 2)
    out = sparse_attention(q, q, q, layout, 16, rpe=fresh(1, 1, 32, 32))
    with pytest.raises(
        ValueError, match=r"biases\[0\] requires a gradient, which lists of blocks do not give on a GPU"
    ):
        out.sum().backward()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"q": torch.zeros(3, 20)}, ValueError, r"out, q, k and v have shapes \(3, 32\), \(3, 20\)"),
        (
            {"q": torch.zeros(3, 32).half()},
            TypeError,
            "out is torch.float32 on cpu, expected torch.float16 on cpu, as q",
        ),
        (
            {"k": torch.zeros(2, 4, 1, 48), "v": torch.zeros(2, 4, 1, 48)},
            ValueError,
            "multiple of the 1 heads of size 48",
        ),
        ({"k": torch.zeros(2, 4, 1, 8), "v": torch.zeros(2, 4, 1, 8)}, ValueError, "size 8, expected a multiple of 16"),
        ({"atoms": torch.zeros(1, 8)}, ValueError, "attention_atoms is torch.float32"),
        ({"q": torch.zeros(3, 33)[:, 1:]}, ValueError, r"q has strides \(33, 1\), expected heads without gaps"),
        ({"v": torch.zeros(2, 8, 1, 16)[:, ::2]}, ValueError, r"v has strides \(128, 32, 16, 1\), expected k's"),
    ],
)
def test_errors_of_attention_over_pages(changes, error, message):
    call = {"out": torch.zeros(3, 32), "q": torch.zeros(3, 32), "k": torch.zeros(2, 4, 1, 16)}
    call |= {"v": torch.zeros(2, 4, 1, 16), "atoms": torch.zeros(1, 8, dtype=torch.int32), **changes}
    with pytest.raises(error, match=message):
        paged_attention.flash_attn_by_atoms(*call.values(), 1.0, True)
