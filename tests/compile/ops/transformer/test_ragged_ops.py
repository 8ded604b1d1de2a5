"""The ops of ragged batches beyond their contract: sequences of other lengths, padding, special values, errors."""

import pytest
import torch
from support.ragged.batches import RaggedBatch

from opforge.builders.cpu.transformer.ragged_ops import RaggedOpsBuilder
from opforge.ops.cases import cases_of
from opforge.testing import comparison

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SEQUENCES = [(0, 3), (15, 17), (1, 4097), (17, 0)]
"""One without a token, and one with many before its own. The contract has sequences of one length."""


@pytest.fixture(scope="module")
def op():
    return RaggedOpsBuilder().load()


def draw(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def integers(*values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(("tokens", "experts", "top"), [(0, 4, 1), (17, 8, 1), (433, 128, 4), (15, 64, 8)])
def test_tokens_go_to_experts_and_come_back(op, tokens, experts, top):
    rows, dtype = tokens + 3, torch.bfloat16
    padded = draw(rows, experts, dtype=dtype)
    counts, scores = torch.zeros(experts, dtype=torch.int32), torch.empty(rows, top)
    chosen, offsets = torch.empty(rows, top, dtype=torch.int32), torch.empty(rows, top, dtype=torch.int32)
    op.top_k_gating(counts, scores, chosen, offsets, padded, integers(tokens, 1))
    exact = padded.double().softmax(1)[:tokens]
    order = padded[:tokens].float().sort(dim=1, descending=True, stable=True).indices[:, :top]
    assert torch.equal(chosen[:tokens].long(), order) and bool((chosen[tokens:] == -1).all())
    torch.testing.assert_close(scores[:tokens].double(), exact.gather(1, order), rtol=1e-6, atol=1e-7)
    assert torch.equal(counts, torch.bincount(order.flatten(), minlength=experts).to(torch.int32))
    assert bool((offsets[tokens:] == -1).all())

    activations = draw(rows, 33, dtype=dtype, seed=1)
    spread, sums = torch.full((rows * top, 33), 7.0).to(dtype), torch.empty(experts, dtype=torch.int64)
    slots = torch.empty(rows, top, dtype=torch.int32)
    op.moe_scatter(spread, sums, slots, activations, counts, chosen, offsets)
    assert torch.equal(sums, counts.long().cumsum(0))
    assert sorted(slots[:tokens].flatten().tolist()) == list(range(tokens * top))
    for token in range(tokens):
        for slot, expert in zip(slots[token].tolist(), chosen[token].tolist(), strict=True):
            assert (sums[expert - 1] if expert else 0) <= slot < sums[expert]
            assert torch.equal(spread[slot], activations[token])

    out = torch.full((rows, 33), 5.0).to(dtype)
    op.moe_gather(out, spread, scores, slots, counts, True)
    torch.testing.assert_close(out[:tokens], activations[:tokens])
    assert bool((out[tokens:] == 5).all()) and not counts.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, -0.0, 1e-42, 3e38])
def test_special_values_of_experts_reach_their_tokens_alone(op, dtype, value):
    """As in float64. A score of -inf is not promised: `top_k_gating` gives none."""
    case = next(case for case in cases_of(RaggedOpsBuilder) if case.name == "tokens from two experts")
    arguments = comparison.make_arguments(case, op.moe_gather, (7, 1025), str(dtype).removeprefix("torch."), "cpu")
    for place in (1, 2) if value > 0 or value != value else (1,):  # the rows of experts, and their scores
        changed = [x.clone() if isinstance(x, torch.Tensor) else x for x in arguments]
        changed[place].view(-1)[3] = value
        results = comparison.results(op.moe_gather, tuple(changed), case.keywords)
        assert not comparison.problem(case, results, tuple(changed)), place


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1024, 1025])
def test_large_sums_of_experts_are_those_of_their_tokens(op, dtype, columns):
    """Results of 4 MiB are written past the caches if their rows are aligned. Tokens have two rows, one, or none."""
    tokens = 2100
    rows, scores = draw(2 * tokens, columns, dtype=dtype), draw(tokens, 2, seed=1).abs()
    slots = torch.arange(2 * tokens, dtype=torch.int32).flip(0).view(tokens, 2)
    slots[::3, 1], slots[::6] = -1, -1
    out, counts = torch.full((tokens, columns), 5.0).to(dtype), torch.zeros(1, dtype=torch.int32)
    op.moe_gather(out, rows, scores, slots, counts, False)
    weights = torch.where(slots < 0, 0.0, scores).double()
    exact = (rows[slots.long().clamp(min=0)].double() * weights[..., None]).sum(1)
    exact[::6] = 5.0
    torch.testing.assert_close(out.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("top", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_score_that_is_nan_gives_nan_whatever_its_bits(op, dtype, top):
    """A NaN whose lower bits are set would become a number when it is rounded to bfloat16."""
    scores = torch.full((1, top), -1, dtype=torch.int32).view(torch.float32)
    out, slots = torch.zeros(1, 33, dtype=dtype), torch.arange(top, dtype=torch.int32).view(1, top)
    op.moe_gather(out, draw(top, 33, dtype=dtype), scores, slots, torch.zeros(1, dtype=torch.int32), False)
    assert out.isnan().all()


def test_of_equal_logits_the_first_expert_is_chosen(op):
    counts, outs = integers(2, 0, 0), [torch.empty(3, 2, dtype=torch.int32) for _ in range(2)]
    op.top_k_gating(counts, torch.empty(3, 2), *outs, torch.zeros(3, 3), integers(3, 1))
    assert outs[0].tolist() == [[0, 1]] * 3
    assert outs[1][:, 0].tolist() == [2, 3, 4]  # the counts go on from what they were
    assert counts.tolist() == [5, 3, 0]


@pytest.mark.parametrize("experts", [1, 5, 16, 37, 256])
def test_experts_with_nan_and_infinite_logits_are_chosen_once_each(op, experts):
    """The largest that is left comes next. A NaN is taken only if it is the first that is left."""
    logits = draw(64, experts)
    for row, special in enumerate((torch.nan, torch.inf, -torch.inf) * 21):
        logits[row, torch.randperm(experts)[: row * experts // 62]] = special
    top = min(experts, 8)
    outs = [torch.empty(64, top, dtype=torch.int32) for _ in range(2)]
    scores = torch.empty(64, top)
    op.top_k_gating(torch.zeros(experts, dtype=torch.int32), scores, *outs, logits, integers(64, 1))
    for row, chosen in zip(logits.tolist(), outs[0].tolist(), strict=True):
        left = list(range(experts))
        for expert in chosen:
            best = left[0]
            for other in left:
                best = other if row[other] > row[best] else best
            assert expert == best
            left.remove(best)
    torch.testing.assert_close(
        scores, logits.softmax(1).gather(1, outs[0].long()), rtol=1e-5, atol=1e-6, equal_nan=True
    )


@pytest.mark.parametrize("ids", [torch.int32, torch.int64])
@pytest.mark.parametrize("shift", [-2, 0, 2])
def test_embeddings_with_and_without_positions(op, ids, shift):
    batch, dtype = RaggedBatch(SEQUENCES, padding=2), torch.float16
    words, table, places = (
        torch.arange(batch.tokens + 2).to(ids) % 50,
        draw(50, 33, dtype=dtype),
        draw(40, 33, dtype=dtype, seed=1),
    )
    out = torch.full((batch.tokens + 2, 33), 7.0).to(dtype)
    op.ragged_embed(out, words, table, None, shift, *batch.described)
    assert torch.equal(out[: batch.tokens], table[words[: batch.tokens].long()])
    assert bool((out[batch.tokens :] == 7).all())
    op.ragged_embed(out, words, table, places, shift, *batch.described)
    positions = torch.tensor([position for _, _, position, _, _ in batch.places()], dtype=torch.int64) + shift
    expected = table[words[: batch.tokens].long()] + places[positions.clamp(0, 39)]
    assert torch.equal(out[: batch.tokens], expected) and bool((out[batch.tokens :] == 7).all())


def test_rows_beyond_the_sequences_keep_their_values(op):
    batch = RaggedBatch([(1, 0), (15, 3), (17, 0)], padding=4)
    values, out = draw(batch.tokens + 4, 33), torch.full((5, 33), 7.0)
    op.gather_for_logits(out, values, batch.metadata, batch.states)
    assert torch.equal(out[:3], values[[0, 15, 32]]) and bool((out[3:] == 7).all())


def rotated(rows, positions, frequencies, size):
    """Returns rows of heads in which the pairs (i, i + half) were rotated by position * frequency, in float64."""
    heads = rows.double().view(rows.shape[0], -1, size).clone()
    half = len(frequencies)
    angles = (positions.float()[:, None] * frequencies.float()).double()[:, None]
    first, second = heads[..., :half].clone(), heads[..., half : 2 * half].clone()
    heads[..., :half] = first * angles.cos() - second * angles.sin()
    heads[..., half : 2 * half] = second * angles.cos() + first * angles.sin()
    return heads.flatten(1)


@pytest.mark.parametrize("form", ["copied", "rotary", "part", "trained"])
def test_keys_and_values_are_put_into_pages(op, form):
    size, heads, group, dtype = 16, 2, 3, torch.bfloat16
    batch = RaggedBatch(SEQUENCES, padding=1)
    qkv = draw(batch.tokens + 1, (group + 2) * heads * size, dtype=dtype)
    q, k, v = qkv.clone().split([group * heads * size, heads * size, heads * size], 1)
    cache = torch.full((batch.pages, batch.block, 2, heads, size), 7.0).to(dtype)
    positions = torch.tensor([position for _, _, position, _, _ in batch.places()], dtype=torch.int64)
    if form == "copied":
        op.linear_kv_copy(cache, q, k, v, *batch.described)
        frequencies = torch.empty(0)
    elif form == "trained":
        frequencies = draw(size // 2, seed=4).abs() / 100
        op.kv_trained_rotary_embeddings(cache, q, k, v, frequencies, *batch.described)
    else:
        dimension = size if form == "rotary" else 8
        frequencies = (10000.0 ** (-torch.arange(0, dimension, 2, dtype=torch.float64) / dimension)).to(dtype)
        op.kv_rotary_embeddings(cache, q, k, v, dimension, 10000.0, *batch.described)
    tokens = slice(0, batch.tokens)
    parts = qkv.split([group * heads * size, heads * size, heads * size], 1)
    of_q, of_k = (rotated(part[tokens], positions, frequencies, size) for part in parts[:2])
    limit = 1e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(q[tokens].double(), of_q, rtol=limit, atol=limit)
    assert torch.equal(q[batch.tokens :], parts[0][batch.tokens :])
    expected = torch.full_like(cache, 7.0).double()
    for token, _, _, page, slot in batch.places():
        expected[page, slot, 0] = of_k[token].view(heads, size)
        expected[page, slot, 1] = parts[2][token].double().view(heads, size)
    torch.testing.assert_close(cache.double(), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("size", "heads", "group"), [(80, 2, 3), (64, 1, 8), (33, 3, 2), (128, 9, 1)])
def test_attention_over_pages(op, dtype, causal, size, heads, group):
    batch = RaggedBatch(SEQUENCES, block=8, seed=1)
    q = draw(batch.tokens, heads * group * size, dtype=dtype)
    cache = draw(batch.pages, 8, 2, heads, size, dtype=dtype, seed=2)
    atoms = torch.zeros(batch.tokens + 1, 8, dtype=torch.int32)
    count = op.build_atoms(atoms, batch.metadata, batch.states, batch.pointers, 4, 8)
    assert count == sum(-(-tokens // 4) for tokens, _ in SEQUENCES)
    out = torch.full_like(q, 7.0)
    op.flash_attn_by_atoms(out, q, cache[:, :, 0], cache[:, :, 1], atoms[:count], size**-0.5, causal)
    start = 0
    for number, (tokens, seen) in enumerate(SEQUENCES):
        keys, values = cache.double()[batch.lists[number].long()].flatten(0, 1)[: seen + tokens].unbind(1)
        queries = q[start : start + tokens].double().view(tokens, heads, group, size)
        scores = torch.einsum("thgd,khd->hgtk", queries, keys) * size**-0.5
        # Without the mask of causality the queries of an atom see all tokens to its last one.
        last = torch.arange(tokens) if causal else (torch.arange(tokens) // 4 * 4 + 3).clamp(max=tokens - 1)
        hidden = torch.arange(seen + tokens)[None] > (seen + last)[:, None]
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        expected = torch.einsum("hgtk,khd->thgd", weights, values).flatten(1)
        limit = 2e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
        torch.testing.assert_close(out[start : start + tokens].double(), expected, rtol=limit, atol=limit)
        start += tokens


@pytest.mark.parametrize("most", [5, 1 << 31, (1 << 63) - 1])
def test_an_atom_and_a_page_may_have_any_number_of_tokens(op, most):
    batch = RaggedBatch([(3, 2)], block=8)
    atoms = torch.zeros(1, 8, dtype=torch.int32)
    assert op.build_atoms(atoms, batch.metadata, batch.states, batch.pointers, most, most) == 1
    assert atoms[0, 2:7].tolist() == [0, 3, 1, 5, 2]


def decoded(op, sequences, heads, group, size, dtype=torch.bfloat16):
    """Returns the results of the first sequence of some whose queries are few, and their exact values."""
    batch = RaggedBatch(sequences, block=8, seed=1)
    (tokens, seen), width = sequences[0], heads * group * size
    q = torch.zeros(batch.tokens, width, dtype=dtype)
    q[:tokens] = draw(tokens, width, dtype=dtype)
    first = batch.lists[0].long()
    cache = torch.zeros(batch.pages, 8, 2, heads, size, dtype=dtype)
    cache[first] = draw(len(first), 8, 2, heads, size, dtype=dtype, seed=2)
    atoms = torch.zeros(batch.tokens, 8, dtype=torch.int32)
    count = op.build_atoms(atoms, batch.metadata, batch.states, batch.pointers, 4, 8)
    out = torch.full_like(q, 7.0)
    op.flash_attn_by_atoms(out, q, cache[:, :, 0], cache[:, :, 1], atoms[:count], size**-0.5, True)
    keys, values = cache.double()[first].flatten(0, 1)[: seen + tokens].unbind(1)
    scores = torch.einsum("thgd,khd->hgtk", q[:tokens].double().view(tokens, heads, group, size), keys) * size**-0.5
    hidden = torch.arange(seen + tokens)[None] > (seen + torch.arange(tokens))[:, None]
    exact = torch.einsum("hgtk,khd->thgd", scores.masked_fill(hidden, -torch.inf).softmax(-1), values)
    return out[:tokens].reshape(tokens, width), exact.reshape(tokens, width)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("queries", "heads", "group", "size"), [(4, 64, 1, 128), (2, 128, 1, 64), (1, 96, 2, 33), (1, 256, 1, 8)]
)
def test_few_queries_of_many_heads(ragged_ops, threads, queries, heads, group, size):
    threads(1)
    out, exact = decoded(ragged_ops, [(queries, 21)], heads, group, size)
    limit = torch.finfo(out.dtype).eps
    torch.testing.assert_close(out.double(), exact, rtol=limit, atol=limit)


@pytest.mark.parametrize("group", [1, 4])
def test_the_error_of_a_decoded_token_hardly_grows_with_the_tokens_before_it(op, group):
    out, exact = decoded(op, [(1, 4000)], 2, group, 64, torch.float32)
    error = (out.double() - exact).norm() / exact.norm()
    assert error < 4 * torch.finfo(torch.float32).eps, "one sum over all tokens has an error of 9 and more"


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_a_decoded_token_depend_on_its_own_sequence_alone(ragged_ops, threads, dtype):
    results = []
    for number, sequences in ((1, [(1, 300)]), (2, [(1, 300)]), (3, [(1, 300)]), (2, [(1, 300), (1, 8), (3, 40)])):
        threads(number)
        results.append(decoded(ragged_ops, sequences, 32, 1, 128, dtype)[0])
    for result in results[1:]:
        assert torch.equal(result.view(torch.uint8), results[0].view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "group"), [(32, 1), (40, 1)])
def test_tokens_that_a_query_does_not_see_may_be_nan(op, dtype, size, group):
    """The two queries of an atom see 36 and 37 keys: of the last one, only the second query's result may be NaN."""
    batch = RaggedBatch([(2, 35)], block=8, seed=1)
    q, cache = draw(2, group * size, dtype=dtype), draw(batch.pages, 8, 2, 1, size, dtype=dtype, seed=2)
    atoms = torch.zeros(1, 8, dtype=torch.int32)
    op.build_atoms(atoms, batch.metadata, batch.states, batch.pointers, 4, 8)
    results = []
    for value in (1.0, torch.nan):
        cache[batch.lists[0][4].long(), 4] = value
        results.append(torch.empty_like(q))
        op.flash_attn_by_atoms(results[-1], q, cache[:, :, 0], cache[:, :, 1], atoms, size**-0.5, True)
    assert torch.equal(results[0][0], results[1][0])
    assert bool(results[0].isfinite().all()) and bool(results[1][1].isnan().all())


@pytest.mark.parametrize("scores", [-torch.inf, 0.0, 1e38])
def test_scores_of_decoding_that_are_infinite_or_large(op, scores):
    """Scores that are all -inf give 0, and large ones weigh the largest alone. The value is that of the position."""
    batch = RaggedBatch([(1, 99)], block=8)
    keys, values = (torch.zeros(batch.pages, 8, 1, 16) for _ in range(2))
    for position in range(100):
        page, slot = batch.lists[0][position // 8].long(), position % 8
        keys[page, slot, 0, 0], values[page, slot] = (position if scores > 0 else 1), float(position)
    q, atoms = torch.zeros(1, 16), torch.zeros(1, 8, dtype=torch.int32)
    q[0, 0] = scores / 100 if scores > 0 else scores
    op.build_atoms(atoms, batch.metadata, batch.states, batch.pointers, 4, 8)
    out = torch.empty_like(q)
    op.flash_attn_by_atoms(out, q, keys, values, atoms, 1.0, True)
    expected = {-torch.inf: 0.0, 0.0: 49.5, 1e38: 99.0}[scores]
    torch.testing.assert_close(out, torch.full_like(out, expected))


def bad_cache(op, **changes):
    batch = RaggedBatch([(3, 2)])
    state = {"q": torch.zeros(3, 32), "k": torch.zeros(3, 16), "v": torch.zeros(3, 16), "dimension": 16}
    state |= {"cache": torch.zeros(batch.pages, 4, 2, 1, 16), **changes}
    for name, value in changes.items():
        if name in ("page", "token", "owner"):
            target = {"page": batch.lists[0], "token": batch.metadata, "owner": batch.owners}[name]
            target[0] = value
    tensors = [state[name] for name in ("cache", "q", "k", "v")]
    try:
        op.kv_rotary_embeddings(*tensors, state["dimension"], 1e4, *batch.described)
    finally:
        assert not state["cache"].any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"page": 9}, "sequence 0 has page 9, expected 0 to 2, the pages of kv_cache"),
        ({"token": 4}, "batch_metadata has 4 tokens, expected 0 to 3, the rows of the tensors"),
        ({"owner": 1}, "tokens_to_seq has 1 at position 0, expected 0 to 0: numbers of sequences"),
        ({"dimension": 18}, "rotary_dim is 18, expected at most 16, the head size"),
        ({"dimension": 3}, "rotary_dim is 3, expected an even number"),
        ({"k": torch.zeros(3, 8)}, r"k has shape \[3, 8\], expected \[3, 16\]: \[tokens of q, heads"),
        ({"q": torch.zeros(3, 20)}, r"q has shape \[3, 20\], expected as many heads as a multiple of the 1"),
        ({"q": torch.zeros(32, 3).t()}, r"q has shape \[3, 32\], expected rows \[tokens, channels\] whose channels"),
        ({"k": torch.zeros(3, 16).half()}, "q, k or v and kv_cache differ in dtype"),
    ],
)
def test_errors_of_the_cache_come_before_anything_is_written(op, changes, message):
    with pytest.raises(RuntimeError, match=message):
        bad_cache(op, **changes)


def attend(op, **changes):
    batch = RaggedBatch([(3, 2)])
    atoms = torch.zeros(1, 8, dtype=torch.int32)
    op.build_atoms(atoms, batch.metadata, batch.states, batch.pointers, 4, changes.get("block", 4))
    if "page" in changes:
        batch.lists[0][0] = changes["page"]
    q, keys = torch.zeros(changes.get("tokens", 3), 32), torch.zeros(batch.pages, 4, 1, 16)
    op.flash_attn_by_atoms(torch.zeros_like(q), q, keys, keys, atoms, 1.0, True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda op: attend(op, page=-1), "atom 0 has page -1, expected 0 to 2, the pages of k"),
        (lambda op: attend(op, tokens=2), "atom 0 has queries 0 to 3, expected some of the 2 rows of q"),
        (lambda op: attend(op, block=2), "atom 0 has 3 pages for 5 tokens, expected pages of 4 tokens"),
        (
            lambda op: op.build_atoms(
                torch.zeros(1, 8, dtype=torch.int32),
                integers(9, 1),
                integers(0, 9, 0, 0).view(1, 4),
                torch.zeros(1, dtype=torch.int64),
                4,
                4,
            ),
            "atoms has 1 rows, expected 3 or more: one for each 4 tokens of a sequence",
        ),
        (
            lambda op: op.ragged_embed(
                torch.zeros(1, 4), integers(9), torch.zeros(5, 4), None, 0, *RaggedBatch([(1, 0)]).described
            ),
            "input_ids has 9 at position 0, expected 0 to 4: rows of embedding_weight",
        ),
        (
            lambda op: op.gather_for_logits(
                torch.zeros(1, 4), torch.zeros(2, 4), integers(0, 1), torch.zeros(1, 4, dtype=torch.int32)
            ),
            "sequence 0 has no token, expected one or more: it has no last token",
        ),
        (
            lambda op: op.top_k_gating(
                integers(0, 0),
                torch.zeros(1, 3),
                integers(0, 0, 0)[None],
                integers(0, 0, 0)[None],
                torch.zeros(1, 2),
                integers(1, 1),
            ),
            "scores has 3 columns, expected at most 2, the number of experts",
        ),
        (
            lambda op: op.moe_scatter(
                torch.zeros(1, 4),
                torch.zeros(2, dtype=torch.int64),
                integers(0)[None],
                torch.zeros(1, 4),
                integers(1, 0),
                integers(2)[None],
                integers(0)[None],
            ),
            "assignments has 2 at position 0, expected -1 to 1: numbers of experts, or -1",
        ),
        (
            lambda op: op.moe_gather(
                torch.zeros(1, 4), torch.zeros(1, 4), torch.zeros(1, 1), integers(1)[None], integers(0), True
            ),
            "mapped_slots has 1 at position 0, expected -1 to 0: rows of moe_output, or -1",
        ),
    ],
)
def test_errors_state_what_was_expected(op, call, message):
    with pytest.raises(RuntimeError, match=message):
        call(op)
