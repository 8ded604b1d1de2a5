"""Cases of the ops of ragged batches: the cache, attention over its pages, and experts, beside torch and a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.foundation.lazy_torch import torch
from opforge.ops.cases.case import ORDINARY, TIME, Call, Case, MissingError, Place, Prepared, Promise
from opforge.ops.cases.memory import COPY, copied
from opforge.ops.cases.pinned import locked
from opforge.ops.cases.rivals import DEEPSPEED, TORCH
from opforge.ops.cases.traffic import TRAFFIC, decoding, of_experts

if TYPE_CHECKING:
    from torch import Tensor

HEADS, GROUP, SIZE, BLOCK = 8, 4, 128, 64
SMALL_BLOCK = 8
"""Tokens of a page, of other sizes of a head."""
WIDTH, EXPERTS, TOP = 4096, 8, 2
WORDS, BASE = 50, 10000.0
FLOATS = ("float32", "bfloat16", "float16")
SEQUENCES, CHOICES, CHOSEN = 16, 256, 8


class Batch(NamedTuple):
    """Sequences over a cache of pages: for the shape (sequences, tokens of each, tokens before, heads, group, size)."""

    cache: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    pages: Tensor
    """The pages of each sequence, in any order, [sequences, pages]."""
    states: Tensor
    """Of each sequence the first token, the tokens, and those before: up to two fewer than the shape says."""


def _batch(place: Place) -> Batch:
    sequences, tokens, seen, heads, group, size = place.shape
    block, random = BLOCK if size == SIZE else SMALL_BLOCK, torch.Generator().manual_seed(0)
    each = -(-(tokens + seen) // block)
    order = torch.randperm(sequences * each, generator=random).to(torch.int32).view(sequences, each)
    states = [[i * tokens, tokens, max(0, seen - i % 3), 0] for i in range(sequences)]
    return Batch(
        place.draw(sequences * each, block, 2, heads, size),
        place.draw(sequences * tokens, heads * group * size, seed=2),
        place.draw(sequences * tokens, heads * size, seed=3),
        place.draw(sequences * tokens, heads * size, seed=4),
        order.to(place.device),
        torch.tensor(states, dtype=torch.int32, device=place.device),
    )


def _described(tokens: int, pages: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the description of a batch, as most functions take it. It has the addresses of the pages alone."""
    sequences, device = len(pages), pages.device
    head = torch.tensor([tokens, sequences], dtype=torch.int32, device=device)
    owners = torch.arange(sequences, dtype=torch.int32, device=device).repeat_interleave(tokens // sequences)
    return head, states, owners, torch.tensor([row.data_ptr() for row in pages], device=device)


def _slots(cache: Tensor, tokens: int, pages: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the position of each token in its sequence, and its place among those of all pages."""
    block, each = cache.shape[1], tokens // len(pages)
    positions = states[:, 2:3].long() + torch.arange(each, device=states.device)
    return positions.flatten(), (pages.long().gather(1, positions // block) * block + positions % block).flatten()


def _to_attend(place: Place) -> tuple[Tensor, ...]:
    batch = _batch(place)
    return torch.zeros_like(batch.q), batch.q, batch.cache, batch.pages, batch.states


def _attend(loaded: Any) -> Callable[..., Tensor]:
    def attend(out: Tensor, q: Tensor, cache: Tensor, pages: Tensor, states: Tensor) -> Tensor:
        _attention(loaded, out, q, cache, pages, states)()
        return out

    return attend


def _attention(loaded: Any, out: Tensor, q: Tensor, cache: Tensor, pages: Tensor, states: Tensor) -> Call:
    """Returns the call alone. It keeps the pages, whose addresses are in the atoms."""
    head, _states, _owners, pointers = _described(len(q), pages, states)
    atoms = torch.zeros(len(q), 8, dtype=torch.int32, device=q.device)
    count = loaded.build_atoms(atoms, head, states, pointers, 128, cache.shape[1])
    keys, values, scale = cache[:, :, 0], cache[:, :, 1], cache.shape[-1] ** -0.5

    def attend(_kept: Tensor = pages) -> Any:
        return loaded.flash_attn_by_atoms(out, q, keys, values, atoms[:count], scale, True)

    return attend


def _attended(_out: Tensor, q: Tensor, cache: Tensor, pages: Tensor, states: Tensor) -> Tensor:
    """Returns causal attention over each sequence's own tokens. What a token does not see may be NaN."""
    sequences, (heads, size) = len(pages), cache.shape[-2:]
    queries = q.view(sequences, -1, heads, q.shape[1] // (heads * size), size)
    both, results = cache[pages.long()].flatten(1, 2), []
    for token in range(queries.shape[1]):
        hidden = torch.arange(both.shape[1], device=q.device) > states[:, 2:3] + token
        keys, values = both.masked_fill(hidden[..., None, None, None], 0.0).unbind(2)
        scores = torch.einsum("shgd,slhd->shgl", queries[:, token], keys) * size**-0.5
        weights = scores.masked_fill(hidden[:, None, None], -torch.inf).softmax(-1)
        results.append(torch.einsum("shgl,slhd->shgd", weights, values))
    return torch.stack(results, 1).reshape(q.shape)


def _together(inputs: Prepared) -> tuple[Tensor, Tensor, Tensor]:
    """Returns queries [sequences, heads, group, size] of one token each, and keys and values that lie together."""
    _out, q, cache, pages, _states = inputs.arguments
    heads, size = cache.shape[-2:]
    keys, values = cache[pages.long()].flatten(1, 2).permute(2, 0, 3, 1, 4).contiguous().unbind(0)
    return q.view(len(pages), heads, -1, size), keys, values


def _products(inputs: Prepared) -> Call:
    """Returns the same by two products."""
    queries, keys, values = (tensor.flatten(0, 1) for tensor in _together(inputs))
    return lambda: torch.bmm((torch.bmm(queries, keys.transpose(1, 2)) * SIZE**-0.5).softmax(-1), values)


def _torch_attend(inputs: Prepared) -> Call:
    from torch.nn import functional

    queries, keys, values = _together(inputs)
    query = queries.flatten(1, 2)[:, :, None]
    return lambda: functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)


def _to_copy(place: Place) -> tuple[Tensor, ...]:
    return tuple(_batch(place))


def _copy(loaded: Any) -> Callable[..., Tensor]:
    def copy(cache: Tensor, q: Tensor, k: Tensor, v: Tensor, pages: Tensor, states: Tensor) -> Tensor:
        loaded.linear_kv_copy(cache, q, k, v, *_described(len(q), pages, states))
        return cache

    return copy


def _copies(inputs: Prepared) -> Call:
    cache, q, k, v, pages, states = inputs.arguments
    described, op = _described(len(q), pages, states), inputs.loaded

    def copies(_kept: Tensor = pages) -> Any:
        return op.linear_kv_copy(cache, q, k, v, *described)

    return copies


def _with_tokens(cache: Tensor, q: Tensor, k: Tensor, v: Tensor, pages: Tensor, states: Tensor) -> Tensor:
    filled, (_positions, slots) = cache.clone(), _slots(cache, len(q), pages, states)
    for number, rows in enumerate((k, v)):
        filled.flatten(0, 1)[slots, number] = rows.view(len(q), *cache.shape[-2:])
    return filled


def _torch_copies(inputs: Prepared) -> Call:
    """Returns the same by torch, for places that are known to Python."""
    cache, q, k, v, pages, states = inputs.arguments
    _positions, slots = _slots(cache, len(q), pages, states)
    flat, rows = cache.flatten(0, 1), [tensor.view(len(q), *cache.shape[-2:]) for tensor in (k, v)]

    def copies() -> None:
        flat[:, 0].index_copy_(0, slots, rows[0])
        flat[:, 1].index_copy_(0, slots, rows[1])

    return copies


def _to_rotate(place: Place) -> tuple[Any, ...]:
    """Returns a batch with the frequency of each pair."""
    return *_batch(place), place.draw(place.shape[-1] // 2, seed=5, dtype=torch.float32).abs() / 100


def _to_rotate_by_base(place: Place) -> tuple[Any, ...]:
    """Returns a batch with the frequencies of half of the pairs, rounded to the dtype: numbers, and no argument."""
    turned = place.shape[-1] // 4 * 2
    powers = BASE ** (-torch.arange(0, turned, 2, dtype=torch.float64) / turned)
    return *_batch(place), tuple(powers.to(place.torch_dtype()).tolist())


def _rotate(loaded: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    def rotate(cache: Tensor, q: Tensor, k: Tensor, v: Tensor, pages: Tensor, states: Tensor, frequencies: Any) -> Any:
        described = _described(len(q), pages, states)
        if isinstance(frequencies, tuple):
            loaded.kv_rotary_embeddings(cache, q, k, v, 2 * len(frequencies), BASE, *described)
        else:
            loaded.kv_trained_rotary_embeddings(cache, q, k, v, frequencies, *described)
        return cache, q

    return rotate


def _rotated(cache: Tensor, q: Tensor, k: Tensor, v: Tensor, pages: Tensor, states: Tensor, frequencies: Any) -> Any:
    """Returns the cache and q. The pairs (i, i + half) of a head are rotated by position * frequency, in float32."""
    frequencies = torch.as_tensor(frequencies, device=q.device).float()
    positions, half, size = _slots(cache, len(q), pages, states)[0], len(frequencies), cache.shape[-1]
    angles = (positions[:, None] * frequencies)[:, None].to(q.dtype)

    def turned(rows: Tensor) -> Tensor:
        own = rows.view(len(q), -1, size)
        first, second, rest = own[..., :half], own[..., half : 2 * half], own[..., 2 * half :]
        cosines, sines = angles.cos(), angles.sin()
        heads = torch.cat((first * cosines - second * sines, second * cosines + first * sines, rest), -1)
        return heads.view(rows.shape)

    return _with_tokens(cache, q, turned(k), v, pages, states), turned(q)


def _to_embed(place: Place) -> tuple[Any, ...]:
    """Returns memory, numbers of rows, the rows, those of positions, and a batch of sequences of three tokens."""
    sequences, width = place.shape
    tokens, random = 3 * sequences, torch.Generator().manual_seed(0)
    ids = torch.randint(0, WORDS, (tokens,), generator=random).to(torch.int32)
    states = torch.tensor([[3 * i, 3, i % 4, 0] for i in range(sequences)], dtype=torch.int32)
    owners = torch.arange(sequences, dtype=torch.int32).repeat_interleave(3)
    head, none = torch.tensor([tokens, sequences], dtype=torch.int32), torch.zeros(sequences, dtype=torch.int64)
    table, places = place.draw(WORDS, width), place.draw(7, width, seed=2)
    batch = [tensor.to(place.device) for tensor in (head, states, owners, none)]
    return table.new_zeros(tokens, width), ids.to(place.device), table, places, -2, *batch


def _embedded(_out: Tensor, ids: Tensor, table: Tensor, places: Tensor, shift: int, *batch: Any) -> Tensor:
    positions = (batch[1][:, 2:3].long() + torch.arange(3, device=ids.device)).flatten() + shift
    return table[ids.long()] + places[positions.clamp(0, len(places) - 1)]


def _to_take_last(place: Place) -> tuple[Any, ...]:
    sequences, width = place.shape
    lengths = [1 + i % 3 for i in range(sequences)]
    rows = [[sum(lengths[:i]), length, i, 0] for i, length in enumerate(lengths)]
    values, head = place.draw(sum(lengths), width), torch.tensor([sum(lengths), sequences], dtype=torch.int32)
    states = torch.tensor(rows, dtype=torch.int32).view(sequences, 4)
    return values.new_zeros(sequences, width), values, head.to(place.device), states.to(place.device)


def _to_choose(place: Place) -> tuple[Any, ...]:
    """Returns counts so far, memory for scores, experts and offsets, logits [tokens, experts], and their number."""
    tokens, experts, top = place.shape
    logits = place.draw(tokens, experts)
    outs = (logits.new_zeros(tokens, top, dtype=dtype) for dtype in (torch.float32, torch.int32, torch.int32))
    counts, head = torch.arange(experts, dtype=torch.int32), torch.tensor([tokens, 1], dtype=torch.int32)
    return counts.to(place.device), *outs, logits, head.to(place.device)


def _chosen(counts: Tensor, _scores: Tensor, _chosen: Tensor, _offsets: Tensor, logits: Tensor, _head: Tensor) -> Any:
    """Returns new counts, scores, the experts with the largest logits, and how many tokens each had before."""
    order = logits.sort(dim=1, descending=True, stable=True).indices[:, : _chosen.shape[1]]
    taken = torch.nn.functional.one_hot(order.flatten(), logits.shape[1])
    before = (taken.cumsum(0) - taken + counts).gather(1, order.flatten()[:, None]).view(order.shape)
    return counts + taken.sum(0), logits.softmax(1).gather(1, order), order.to(torch.int32), before.to(torch.int32)


def _choose(inputs: Prepared) -> Call:
    op, (counts, *rest) = inputs.loaded, inputs.arguments

    def choose() -> None:
        counts.zero_()
        op.top_k_gating(counts, *rest)

    return choose


def _torch_choose(inputs: Prepared) -> Call:
    return lambda: inputs.arguments[4].float().softmax(-1).topk(CHOSEN, -1)


def _to_spread(place: Place) -> tuple[Any, ...]:
    """Returns memory for rows of experts, sums and slots; tokens, and the two experts of each, with offsets there."""
    tokens, width = place.shape
    chosen = torch.rand(tokens, EXPERTS, generator=torch.Generator().manual_seed(0)).argsort(1)[:, :TOP]
    taken = torch.nn.functional.one_hot(chosen.flatten(), EXPERTS)
    offsets = (taken.cumsum(0) - taken).gather(1, chosen.flatten()[:, None]).view(tokens, TOP)
    rows = place.draw(tokens, width)
    memory = rows.new_zeros(tokens * TOP, width), rows.new_zeros(EXPERTS, dtype=torch.int64)
    slots = rows.new_zeros(tokens, TOP, dtype=torch.int32)
    return *memory, slots, rows, *(tensor.to(place.device, torch.int32) for tensor in (taken.sum(0), chosen, offsets))


def _spread(out: Tensor, _sums: Tensor, _slots: Tensor, rows: Tensor, counts: Tensor, *places: Tensor) -> Any:
    sums, (chosen, offsets) = counts.long().cumsum(0), places
    slots = (sums - counts)[chosen.long()] + offsets
    spread = torch.empty_like(out)
    spread[slots] = rows[:, None].expand(-1, TOP, -1)
    return spread, sums, slots.to(torch.int32)


def decode_amount(size: int, itemsize: int) -> float:
    """Returns the bytes of the keys and values of `size` tokens."""
    return decoding(size, HEADS, SIZE, itemsize)


def copy_amount(size: int, itemsize: int) -> float:
    """Returns the bytes of the keys and values of `size` tokens, read and written."""
    return TRAFFIC["linear_kv_copy"].amount(size * HEADS * SIZE, itemsize)


def _tokens(place: Place) -> tuple[Any, ...]:
    """Returns memory for tokens, the rows of two experts for each, their scores, their places, and counts."""
    tokens, width = place.shape
    random = torch.Generator().manual_seed(3)
    slots = torch.randperm(tokens * TOP, generator=random).to(torch.int32).view(-1, TOP).to(place.device)
    rows = place.draw(tokens * TOP, width)
    scores = place.draw(tokens, TOP, seed=2, dtype=torch.float32).abs() + 0.1
    counts = torch.ones(EXPERTS, dtype=torch.int32, device=place.device)
    return torch.zeros_like(rows[:tokens]), rows, scores, slots, counts, True


def _of_experts(_out: Tensor, rows: Tensor, scores: Tensor, slots: Tensor, counts: Tensor, _normalized: bool) -> Any:
    """Returns the sums, and the counts, which are cleared for the next call."""
    shares = scores / scores.sum(1, keepdim=True)
    return (rows[slots.long()] * shares[..., None]).sum(1), counts * 0


def gather_amount(size: int, itemsize: int) -> float:
    """Returns the bytes of the rows of all experts and of the tokens."""
    return of_experts(TOP).amount(size * WIDTH, itemsize)


def _torch_gather(inputs: Prepared) -> Call:
    _out, rows, scores, slots, *_rest = inputs.arguments
    numbers = slots.long()

    def gather() -> object:
        shares = (scores / scores.sum(1, keepdim=True)).to(rows.dtype)
        return (rows[numbers] * shares[..., None]).sum(1)

    return gather


def _deepspeed(inputs: Any) -> Call:
    raise MissingError("its ragged ops need a GPU")


def _case(
    name: str,
    inputs: Callable[[Place], Any],
    torchs: Callable[[Prepared], Call],
    amount: Callable[[int, int], float],
    **others: Any,
) -> Case:
    return Case(
        name,
        inputs,
        timed_dtypes=("float32", "bfloat16"),
        sizes=(256, 4096),
        rivals={TORCH: torchs, DEEPSPEED: _deepspeed, COPY: copied},
        baseline=(COPY,),
        amount=amount,
        size_unit="tokens",
        dtypes=FLOATS,
        **others,
    )


DECODED = {"float32": 2e-6, "bfloat16": 8e-3, "float16": 1e-3}
TURNED = {"float32": 1e-5, "bfloat16": 3e-2, "float16": 4e-3}

SMALL = ((1, 1, 0, 1, 1, 16), (3, 1, 20, 2, 2, 16), (2, 5, 3, 3, 2, 34), (2, 2, 37, 2, 3, 20))
COPIED: dict[str, Any] = {
    "tolerance": 0,
    "refused_dtypes": (),
    "strided": False,
    "promises": (*ORDINARY, Promise.ZEROS, Promise.PAYLOADS),
}
"""Fields of the cases whose functions copy elements."""
ATTENTION: dict[str, Any] = {
    "function": _attend,
    "reference": _attended,
    "shapes": SMALL,
    "tolerance": DECODED,
    "outputs": (0,),
    "changed": (0,),
    "refused_dtypes": ("float64",),
    "strided": False,
    "promises": (Promise.REPEATS, Promise.THREADS, Promise.ALIGNMENT, Promise.NAN, Promise.ACCURACY),
}
"""Infinite scores are not promised: a row whose scores are all -inf is 0, and NaN in the reference."""
RAGGED_OPS = (
    _case(
        "attention over pages",
        _to_attend,
        _torch_attend,
        decode_amount,
        shape=lambda size: (1, 1, size - 1, HEADS, GROUP, SIZE),
        ours=lambda inputs: _attention(inputs.loaded, *inputs.arguments),
        **ATTENTION,
    ),
    _case(
        "keys and values to pages",
        _to_copy,
        _torch_copies,
        copy_amount,
        shape=lambda size: (1, size, 0, HEADS, GROUP, SIZE),
        ours=_copies,
        function=_copy,
        reference=_with_tokens,
        shapes=SMALL,
        changed=(0,),
        **COPIED,
    ),
    *(
        Case(
            f"keys and values to pages, rotated by {name}",
            inputs,
            _rotate,
            reference=_rotated,
            dtypes=FLOATS,
            shapes=SMALL,
            tolerance=TURNED,
            changed=(0, 1),
            refused_dtypes=(),
            strided=False,
        )
        for name, inputs in (("frequencies", _to_rotate), ("a base", _to_rotate_by_base))
    ),
    Case(
        "embeddings of tokens and positions",
        _to_embed,
        "ragged_embed",
        reference=_embedded,
        dtypes=FLOATS,
        shapes=((1, 1), (3, 15), (5, 1025)),
        outputs=("embedded_tokens",),
        strided=False,
    ),
    Case(
        "the last token of each sequence",
        _to_take_last,
        "gather_for_logits",
        reference=lambda _out, values, _head, states: values[(states[:, 0] + states[:, 1] - 1).long()],
        dtypes=(*FLOATS, "float64"),
        shapes=((1, 1), (3, 15), (5, 1025)),
        outputs=("final_token_acts",),
        **COPIED,
    ),
    Case(
        "tokens to two experts",
        _to_spread,
        "moe_scatter",
        reference=_spread,
        dtypes=FLOATS,
        shapes=((1, 1), (3, 15), (7, 1025)),
        outputs=("moe_input", "expert_count_cumsums", "mapped_slots"),
        **COPIED,
    ),
    _case(
        "tokens from two experts",
        _tokens,
        _torch_gather,
        gather_amount,
        shape=lambda size: (size, WIDTH),
        function="moe_gather",
        reference=_of_experts,
        shapes=((1, 1), (3, 15), (7, 1025)),
        tolerance={"float32": 1e-6, "bfloat16": 1e-2},
        outputs=("layer_output",),
        refused_dtypes=("float64",),
        strided=False,
        promises=tuple(promise for promise in ORDINARY if promise is not Promise.INFINITIES),
    ),
    Case(
        f"attention of a query each of {SEQUENCES} sequences",
        _to_attend,
        sizes=(1024, 4096),
        shape=lambda size: (SEQUENCES, 1, size - 1, HEADS, GROUP, SIZE),
        ours=lambda inputs: _attention(inputs.loaded, *inputs.arguments),
        rivals={"torch bmm": _products, DEEPSPEED: _deepspeed, COPY: copied},
        baseline=(COPY,),
        amount=lambda size, itemsize: SEQUENCES * decode_amount(size, itemsize),
        size_unit="tokens",
        dtypes=("float32", "bfloat16"),
        quick=(1024,),
        goals={"torch bmm": 1.2, "baseline": 0.6},
    ),
    Case(
        f"{CHOSEN} of {CHOICES} experts",
        _to_choose,
        "top_k_gating",
        reference=_chosen,
        shapes=((1, 1, 1), (17, 8, 2), (33, 128, 4), (15, 64, 8)),
        tolerance=1e-6,
        outputs=("scores", "assignments", "offsets"),
        refused_dtypes=(),
        strided=False,
        promises=(Promise.REPEATS, Promise.THREADS, Promise.ALIGNMENT),  # a NaN has no order
        sizes=(256, 2048),
        shape=lambda size: (size, CHOICES, CHOSEN),
        ours=_choose,
        rivals={TORCH: _torch_choose, DEEPSPEED: _deepspeed},
        baseline=(TORCH,),
        amount=lambda size, itemsize: size,
        unit=TIME,
        size_unit="tokens",
        dtypes=FLOATS,
        timed_dtypes=("float32", "bfloat16"),
        quick=(2048,),
        goals={TORCH: 1.5},
    ),
)
BARE = "torch view, unchecked"


def _buffer(place: Place) -> Tensor:
    return torch.zeros(4096, dtype=torch.uint8, device=place.device)


def _views(inputs: Prepared) -> Call:
    view, buffer = inputs.loaded.allocate_view_on, inputs.arguments
    like = torch.empty(16, 16, dtype=torch.int32, device=buffer.device)
    return lambda: [view(like, buffer, 64) for _ in range(inputs.place.size)]


def _bare_views(inputs: Prepared) -> Call:
    buffer = inputs.arguments
    return lambda: [buffer[64:1088].view(torch.int32).view(16, 16) for _ in range(inputs.place.size)]


def _is_like_its_tensor(loaded: Any, _device: str) -> None:
    before, mirror = locked(), torch.ones(3, 5, dtype=torch.int32)
    buffer = loaded.allocate_fast_host_buffer(mirror)
    assert buffer.shape == mirror.shape and buffer.dtype == mirror.dtype and not buffer.any()
    assert locked() - before >= buffer.nbytes, "the buffer is not locked"


def _has_the_bytes_at_its_offset(loaded: Any, _device: str) -> None:
    buffer = torch.arange(64, dtype=torch.uint8)
    expected = buffer[8:32].view(torch.int32).view(2, 3)
    view = loaded.allocate_view_on(torch.empty(2, 3, dtype=torch.int32), buffer, 8)
    assert torch.equal(view, expected) and view.data_ptr() == buffer.data_ptr() + 8, "the view has other bytes"
    like = loaded.allocate_view_like((3, 2), (1, 3), torch.empty(0, dtype=torch.int32), buffer, 8)
    assert torch.equal(like, expected.t()), "the view has other strides"


RAGGED_UTILS = (
    Case(
        "allocate_view_on",
        _buffer,
        checks={
            "a buffer is like its tensor, and locked": _is_like_its_tensor,
            "a view has the bytes at its offset": _has_the_bytes_at_its_offset,
        },
        sizes=(1, 100),
        ours=_views,
        rivals={DEEPSPEED: _deepspeed, BARE: _bare_views},
        baseline=(BARE,),
        amount=lambda size, itemsize: size,
        unit=TIME,
        size_unit="views",
        quick=(100,),
    ),
)
