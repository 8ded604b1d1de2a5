"""The ops of ragged batches for GPUs, by Triton's interpreter: beside float64, and beside the host's op."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.gpu.triton_cases import INTERPRETED
from support.ragged.batches import RaggedBatch

from opforge.accelerator.registry import make_accelerator
from opforge.builders.cpu.transformer.ragged_ops import RaggedOpsBuilder as HostBuilder
from opforge.builders.triton.ragged import EXPERTS, RaggedOpsBuilder
from opforge.ops import host_op
from opforge.ops.cases import cases_of
from opforge.ops.triton import attention
from opforge.testing import OpContract
from opforge.testing.ops import Tried

pytestmark = [pytest.mark.compile, *INTERPRETED]
FP32, FP16, INT32 = torch.float32, torch.float16, torch.int32
NAN = float("nan")


@pytest.fixture
def op(interpreted, builds_are_shared, monkeypatch):
    """The op for GPUs, which takes tensors of the host."""
    HostBuilder().load()
    monkeypatch.setattr(host_op, "on_host", lambda tensor: False)
    return RaggedOpsBuilder("cuda:sm_90").load()


SLOW = pytest.mark.long("interprets its kernel for 5 to 30 s; the next test compares its results")
EXPENSIVE = ("attention", "rotated", "of 256 experts")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[SLOW] if any(part in case.name for part in EXPENSIVE) else [], id=case.name)
        for case in cases_of(RaggedOpsBuilder)
    ],
)
def test_a_function_keeps_what_its_case_promises(op, case, monkeypatch):
    monkeypatch.setattr(attention, "DTYPES", (FP16, torch.bfloat16))  # the interpreter's would take float32 too
    shape = case.shapes[len(case.shapes) // 2]
    own = replace(case, dtypes=("float16",), shapes=(shape,), large_shape=shape, sizes=(), tuned={})
    OpContract.of([own], op, "cpu").check()


def test_the_cases_compare_a_kernel_of_each_kind(op):
    launched, launch = set(), op.kernels.launch
    op.kernels.launch = lambda name, *rest: (launched.add(name.partition("_")[0]), launch(name, *rest))
    for case in cases_of(RaggedOpsBuilder):
        tried = Tried(case, case.bound(op), case.shapes[0], "float16", "cpu")
        tried.compare(tried.arguments())
    assert launched == {kernel.name.partition("_")[0] for kernel in RaggedOpsBuilder.kernels}


def test_create_op_builder_of_a_gpu_returns_it_with_every_function_of_the_hosts(op):
    assert make_accelerator("cuda", "a test").get_op_builder("RaggedOpsBuilder") is RaggedOpsBuilder
    hosts = [name for name in dir(HostBuilder().load()) if not name.startswith("_")]
    assert {name for name in hosts if callable(getattr(HostBuilder().load(), name))} <= {*dir(op)}


def integers(*values):
    return torch.tensor(values, dtype=INT32)


def both(op, name, written, others):
    """Calls a function of both ops with equal tensors, and returns the pairs of what it wrote."""
    results = [[tensor.clone() for tensor in written] for _ in range(2)]
    for each, tensors in zip((op, HostBuilder().load()), results, strict=True):
        getattr(each, name)(*tensors, *others)
    return list(zip(*results, strict=True))


def same(pairs):
    for ours, hosts in pairs:
        assert torch.equal(ours, hosts)


@pytest.mark.parametrize("top", [0, 1, 3])
@pytest.mark.parametrize("experts", [1, 5, EXPERTS[0][0] + 1])
def test_tokens_go_to_experts_and_come_back(op, experts, top):
    top, tokens, rows = min(top, experts), 9, 12
    logits = torch.randn(rows, experts).half()
    logits[1], logits[2, 0] = 1.0, -float("inf")
    logits[4] = -float("inf")
    outputs = [torch.full((rows, top), 7.0), *(torch.full((rows, top), 7, dtype=INT32) for _ in range(2))]
    counts = torch.arange(experts, dtype=INT32)
    pairs = both(op, "top_k_gating", [counts, *outputs], [logits, integers(tokens, 1)])
    same([pairs[0], *pairs[2:]])
    torch.testing.assert_close(*pairs[1], equal_nan=True)
    counts, _scores, chosen, offsets = (pair[0] for pair in pairs)
    offsets[: tokens + 1] -= chosen[: tokens + 1] * (chosen[: tokens + 1] >= 0)  # counts began with the expert's number
    counts -= torch.arange(experts, dtype=INT32)
    activations = torch.randn(rows, 33).half()
    written = [torch.full((rows * top, 33), 7.0).half(), torch.zeros(experts, dtype=torch.int64), chosen.clone()]
    pairs = both(op, "moe_scatter", written, [activations, counts, chosen, offsets])
    same(pairs)
    spread, slots = pairs[0][0], pairs[2][0]
    shares = torch.rand(rows, top)
    out = torch.full((rows, 33), 5.0).half()
    for normalizes in (True, False):
        results = [out.clone(), counts.clone()]
        op.moe_gather(results[0], spread, shares, slots, results[1], normalizes)
        weights = torch.where(slots < 0, 0.0, shares / (shares.sum(1, keepdim=True) if normalizes else 1)).double()
        exact = (spread[slots.long().clamp(min=0)].double() * weights[..., None]).sum(1) if top else out.double()
        exact[(slots < 0).all(1)] = 5.0
        torch.testing.assert_close(results[0].double(), exact, rtol=2e-3, atol=2e-3)
        assert not results[1].any()


def test_a_logit_of_nan_is_chosen_last_and_numbers_out_of_range_write_nothing(op):
    logits = torch.tensor([[NAN, 1.0, -0.0, 0.0], [-NAN, -float("inf"), 2.0, float("inf")]])
    chosen, offsets = torch.empty(2, 4, dtype=INT32), torch.empty(2, 4, dtype=INT32)
    op.top_k_gating(torch.zeros(4, dtype=INT32), torch.empty(2, 4), chosen, offsets, logits, integers(2, 1))
    assert chosen.tolist() == [[1, 2, 3, 0], [3, 2, 1, 0]]
    out, slots = torch.full((2, 16), 7.0), integers(0, 0).view(2, 1)
    sums = torch.zeros(2, dtype=torch.int64)
    op.moe_scatter(
        out, sums, slots, torch.ones(2, 16), integers(1, 1), integers(5, 1).view(2, 1), integers(0, 9).view(2, 1)
    )
    assert (out == 7).all() and slots.flatten().tolist() == [-1, -1] and sums.tolist() == [1, 2]
    result = torch.full((1, 16), 7.0)
    op.moe_gather(result, out[:1], torch.ones(1, 1), integers(3).view(1, 1), integers(1), False)
    assert (result == 7).all()


@pytest.mark.parametrize("dtype", [FP32, FP16])
@pytest.mark.parametrize("half", [None, 0, 3, 8])
def test_the_cache_is_filled_with_rotated_keys(op, half, dtype):
    heads, size, batch = 2, 16, RaggedBatch([(5, 0), (0, 3), (3, 6001)], block=4)
    rows = batch.tokens + 2
    q, k, v = (torch.randn(rows, count * size + 3).to(dtype)[:, : count * size] for count in (4, 2, 2))
    batch.owners = torch.cat([batch.owners, integers(0, 9)])
    cache, before = torch.full((batch.pages, 4, 2, heads, size), 7.0, dtype=dtype), q.clone()
    if half is None:
        same(both(op, "linear_kv_copy", [cache], [q, k, v, *batch.described]))
        return
    trained = torch.rand(half)
    for name, option in (
        ("kv_trained_rotary_embeddings", [trained]),
        ("kv_rotary_embeddings", [2 * half, 10000.0]),
    ):
        results = cache.clone(), q.clone()
        getattr(op, name)(*results, k, v, *option, *batch.described)
        exact = [tensor.double() for tensor in (cache, before)]
        power = torch.arange(half).double() / max(half, 1)
        frequencies = trained.double() if len(option) == 1 else (10000.0**-power).float().to(dtype).double()
        for token, _sequence, position, page, place in batch.places():
            angle = (frequencies.float() * position).double()
            cosine, sine = angle.cos(), angle.sin()

            def rotated(row, cosine=cosine, sine=sine):
                row = row.double().view(-1, size).clone()
                x, y = row[:, :half].clone(), row[:, half : 2 * half].clone()
                row[:, :half], row[:, half : 2 * half] = x * cosine - y * sine, y * cosine + x * sine
                return row

            exact[0][page, place, 0], exact[0][page, place, 1] = rotated(k[token]), v[token].double().view(heads, size)
            exact[1][token] = rotated(before[token]).flatten()
        limit = 2e-6 if dtype == FP32 else 2e-3
        for result, expected in zip(results, exact, strict=True):
            torch.testing.assert_close(result.double(), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("ids", [INT32, torch.int64])
@pytest.mark.parametrize("places", [True, False])
def test_embeddings_and_last_tokens(op, places, ids):
    batch = RaggedBatch([(1, 0), (5, 37)], padding=2)
    rows = batch.tokens + 2
    words, table = (torch.arange(rows) * 7 % 50).to(ids), torch.randn(50, 33).half()
    table[7, :4] = torch.tensor([NAN, -0.0, float("inf"), 6e-8]).half()
    weight = torch.randn(40, 33).half() if places else None
    out = torch.full((rows, 33), 7.0).half()
    (pair,) = both(op, "ragged_embed", [out], [words, table, weight, -1, *batch.described])
    assert torch.equal(*(tensor.view(torch.int16) for tensor in pair))
    words[1], words[2] = -1, 50
    op.ragged_embed(out, words, table, weight, -1, *batch.described)
    assert out[1:3].isnan().all() and torch.equal(out[3:], pair[0][3:])
    for columns in (33, 64):
        tokens = torch.randn(batch.tokens, columns).half()
        (pair,) = both(op, "gather_for_logits", [out[:4, :1].repeat(1, columns)], [tokens, *batch.described[:2]])
        assert torch.equal(*(tensor.view(torch.int16) for tensor in pair))
    batch.states[1, 1] = 0
    last = torch.zeros(2, 33).half()
    op.gather_for_logits(last, tokens[:, :33].contiguous(), *batch.described[:2])
    assert last[1].isnan().all() and not last[0].isnan().any()


def test_atoms_of_tensors_of_the_device_are_those_of_the_host(op):
    batch = RaggedBatch([(5, 0), (300, 7)], block=4)
    atoms, hosts = torch.full((9, 8), 7, dtype=INT32), torch.full((9, 8), 7, dtype=INT32)
    arguments = (*batch.described[:2], batch.pointers, 128, 4)
    assert op.build_atoms(atoms, *arguments) == HostBuilder().load().build_atoms(hosts, *arguments) == 4
    assert torch.equal(atoms, hosts)


CACHE, ROWS = torch.zeros(2, 4, 2, 1, 16), torch.zeros(3, 16)
BATCH = (integers(3, 1), torch.zeros(1, 4, dtype=INT32), torch.zeros(3, dtype=INT32), torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [
        ("linear_kv_copy", (CACHE, ROWS, ROWS[:, :8], ROWS, *BATCH), ValueError, r"k has shape \(3, 8\), expected"),
        ("linear_kv_copy", (CACHE, ROWS, ROWS.half(), ROWS, *BATCH), TypeError, "k is torch.float16 on cpu, expected"),
        ("linear_kv_copy", (CACHE, ROWS, ROWS, ROWS, *BATCH[:3], BATCH[2]), TypeError, "kv_ptrs is torch.int32"),
        ("kv_rotary_embeddings", (CACHE, ROWS, ROWS, ROWS, 3, 1.0, *BATCH), ValueError, "rotary_dim is 3, expected an"),
        ("kv_rotary_embeddings", (CACHE, ROWS, ROWS, ROWS, 32, 1.0, *BATCH), ValueError, "rotary_dim is 32, expected"),
        ("moe_gather", (ROWS, ROWS[:1], ROWS[:, :1].contiguous(), BATCH[2].view(3, 1), BATCH[2], True), ValueError,
         r"moe_output has shape \(1, 16\), expected \[3, 16\]"),
        ("top_k_gating", (BATCH[2][:2], ROWS, ROWS.int(), ROWS.int(), ROWS[:, :2].contiguous(), BATCH[0]), ValueError,
         "logits has 2 experts and scores 16 columns, expected at most 4096"),
        ("gather_for_logits", (ROWS[:, :8].contiguous(), ROWS, *BATCH[:2]), ValueError, r"final_token_acts has shape"),
        ("ragged_embed", (ROWS, BATCH[2].float(), ROWS, None, 0, *BATCH), TypeError, "input_ids is torch.float32"),
    ],
)  # fmt: skip
def test_errors_name_what_does_not_fit(op, name, arguments, error, message):
    with pytest.raises(error, match=message):
        getattr(op, name)(*arguments)
