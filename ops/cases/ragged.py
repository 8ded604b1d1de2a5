"""Cases of the ops of ragged batches: the cache, attention over its pages, and experts, beside torch and a copy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.ops.cases.form import ORDINARY, TIME, Call, Case, MissingError, Place, Prepared, Promise
from opforge.ops.cases.memory import COPY, copied
from opforge.ops.cases.pinned import locked
from opforge.ops.cases.rivals import DEEPSPEED, TORCH
from opforge.ops.cases.traffic import TRAFFIC, decoding, of_experts

if TYPE_CHECKING:
    from torch import Tensor

HEADS, GROUP, SIZE, BLOCK = 8, 4, 128, 64
WIDTH, EXPERTS, TOP = 4096, 8, 2
SEQUENCES, CHOICES, CHOSEN = 16, 256, 8


class Sequence(NamedTuple):
    """One sequence, its cache and one more token of it, with the tensors that describe them."""

    cache: Tensor
    q: Tensor
    rows: Tensor
    described: tuple[Tensor, ...]
    kept: Tensor
    """The list of pages, whose address is among the tensors."""


def _sequence(tokens: int, seen: int, place: Place) -> Sequence:
    import torch

    random = torch.Generator().manual_seed(0)
    pages = -(-(tokens + seen) // BLOCK)
    order = torch.randperm(pages, generator=random).to(torch.int32)
    sizes = ((pages, BLOCK, 2, HEADS, SIZE), (tokens, HEADS * GROUP * SIZE), (tokens, HEADS * SIZE))
    cache, q, rows = (torch.randn(shape, generator=random).to(place.torch_dtype()) for shape in sizes)
    states = torch.tensor([[0, tokens, seen, 0]], dtype=torch.int32)
    owners = torch.zeros(tokens, dtype=torch.int32)
    pointers = torch.tensor([order.data_ptr()])
    head = torch.tensor([tokens, 1], dtype=torch.int32)
    return Sequence(cache, q, rows, (head, states, owners, pointers), order)


def _decode(place: Place) -> Sequence:
    return _sequence(1, place.size - 1, place)


class Decoding(NamedTuple):
    """One more token of several sequences, whose keys and values are in pages one after the other."""

    cache: Tensor
    q: Tensor
    head: Tensor
    states: Tensor
    pointers: Tensor
    pages: Tensor
    """The lists of pages, whose addresses are in `pointers`."""


def _decodings(place: Place) -> Decoding:
    import torch

    random = torch.Generator().manual_seed(0)
    pages = place.size // BLOCK
    cache = torch.randn(SEQUENCES * pages, BLOCK, 2, HEADS, SIZE, generator=random).to(place.torch_dtype())
    q = torch.randn(SEQUENCES, HEADS * GROUP * SIZE, generator=random).to(place.torch_dtype())
    lists = torch.arange(SEQUENCES * pages, dtype=torch.int32).view(SEQUENCES, pages)
    states = torch.tensor([[i, 1, place.size - 1, 0] for i in range(SEQUENCES)], dtype=torch.int32)
    pointers = torch.tensor([row.data_ptr() for row in lists])
    head = torch.tensor([SEQUENCES] * 2, dtype=torch.int32)
    return Decoding(cache, q, head, states, pointers, lists)


def _decode_all(inputs: Prepared) -> Call:
    import torch

    op, (cache, q, head, states, pointers, _pages) = inputs.loaded, inputs.arguments
    atoms = torch.zeros(SEQUENCES, 8, dtype=torch.int32)
    op.build_atoms(atoms, head, states, pointers, 128, BLOCK)
    out, keys, values = torch.empty_like(q), cache[:, :, 0], cache[:, :, 1]
    return lambda: op.flash_attn_by_atoms(out, q, keys, values, atoms, SIZE**-0.5, True)


def _products(inputs: Prepared) -> Call:
    """Returns the same by two products, over keys and values that lie together already."""
    import torch

    own: Decoding = inputs.arguments
    heads = own.cache.view(SEQUENCES, -1, 2, HEADS, SIZE).permute(2, 0, 3, 1, 4).flatten(1, 2).contiguous()
    keys, values = heads.unbind(0)
    queries = own.q.view(SEQUENCES * HEADS, GROUP, SIZE)
    return lambda: torch.bmm((torch.bmm(queries, keys.transpose(1, 2)) * SIZE**-0.5).softmax(-1), values)


class Choice(NamedTuple):
    """Logits of tokens, and memory for what is chosen."""

    counts: Tensor
    outs: tuple[Tensor, ...]
    logits: Tensor
    head: Tensor


def _choices(place: Place) -> Choice:
    import torch

    logits = torch.randn(place.size, CHOICES, generator=torch.Generator().manual_seed(0)).to(place.torch_dtype())
    outs = tuple(torch.zeros(place.size, CHOSEN, dtype=dtype) for dtype in (torch.float32, torch.int32, torch.int32))
    head = torch.tensor([place.size, 1], dtype=torch.int32)
    return Choice(torch.zeros(CHOICES, dtype=torch.int32), outs, logits, head)


def _choose(inputs: Prepared) -> Call:
    op, (counts, outs, logits, head) = inputs.loaded, inputs.arguments

    def choose() -> None:
        counts.zero_()
        op.top_k_gating(counts, *outs, logits, head)

    return choose


def _torch_choose(inputs: Prepared) -> Call:
    return lambda: inputs.arguments.logits.float().softmax(-1).topk(CHOSEN, -1)


def _copied(place: Place) -> Sequence:
    return _sequence(place.size, 0, place)


def decode_amount(size: int, itemsize: int) -> float:
    """Returns the bytes of the keys and values of `size` tokens."""
    return decoding(size, HEADS, SIZE, itemsize)


def copy_amount(size: int, itemsize: int) -> float:
    """Returns the bytes of the keys and values of `size` tokens, read and written."""
    return TRAFFIC["linear_kv_copy"].amount(size * HEADS * SIZE, itemsize)


def _attend(inputs: Prepared) -> Call:
    import torch

    op, (cache, q, _rows, described, _kept) = inputs.loaded, inputs.arguments
    atoms, out = torch.zeros(1, 8, dtype=torch.int32), torch.empty_like(q)
    op.build_atoms(atoms, described[0], described[1], described[3], 128, BLOCK)
    keys, values = cache[:, :, 0], cache[:, :, 1]
    # The list of pages, whose address is in the atoms, must live as long as the call.
    return lambda: inputs.loaded.flash_attn_by_atoms(out, q, keys, values, atoms, SIZE**-0.5, True)


def _torch_attend(inputs: Prepared) -> Call:
    """Returns attention by torch over keys and values that lie together already."""
    from torch.nn import functional

    own: Sequence = inputs.arguments
    keys, values = own.cache.flatten(0, 1).permute(1, 2, 0, 3).contiguous()[:, None].unbind(0)
    query = own.q.view(1, HEADS * GROUP, 1, SIZE)
    return lambda: functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)


def _fill(inputs: Prepared) -> Call:
    cache, q, rows, described, _kept = inputs.arguments
    return lambda: inputs.loaded.linear_kv_copy(cache, q, rows, rows, *described)


def _torch_fill(inputs: Prepared) -> Call:
    """Returns the same by torch, for pages whose order is known to Python."""
    import torch

    own: Sequence = inputs.arguments
    rows = own.rows.view(-1, HEADS, SIZE)
    places = (own.kept.long()[:, None] * BLOCK + torch.arange(BLOCK)).flatten()[: rows.shape[0]]
    flat = own.cache.flatten(0, 1)

    def fill() -> None:
        flat[:, 0].index_copy_(0, places, rows)
        flat[:, 1].index_copy_(0, places, rows)

    return fill


def _tokens(place: Place) -> tuple[Any, ...]:
    """Returns memory for tokens, the rows of two experts for each, their scores, their places, and counts."""
    import torch

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
        sizes=(256, 4096),
        rivals={TORCH: torchs, DEEPSPEED: _deepspeed, COPY: copied},
        baseline=(COPY,),
        amount=amount,
        size_unit="tokens",
        dtypes=("float32", "bfloat16"),
        **others,
    )


def _check(name: str, loaded: Any, device: str) -> None:
    """Runs a check of batches, whose module imports torch."""
    from opforge.ops.cases import ragged_batches

    getattr(ragged_batches, name)(loaded, device)


RAGGED_OPS = (
    _case(
        "attention of one query",
        _decode,
        _torch_attend,
        decode_amount,
        ours=_attend,
        checks={"attention over pages agrees with float64": partial(_check, "attends_over_pages")},
    ),
    _case(
        "keys and values to pages",
        _copied,
        _torch_fill,
        copy_amount,
        ours=_fill,
        checks={"keys and values go to the pages of their tokens": partial(_check, "copies_to_pages")},
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
        _decodings,
        sizes=(1024, 4096),
        ours=_decode_all,
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
        _choices,
        sizes=(256, 2048),
        ours=_choose,
        rivals={TORCH: _torch_choose, DEEPSPEED: _deepspeed},
        baseline=(TORCH,),
        amount=lambda size, itemsize: size,
        unit=TIME,
        size_unit="tokens",
        dtypes=("float32", "bfloat16"),
        quick=(2048,),
        goals={TORCH: 1.5},
    ),
)
BARE = "torch view, unchecked"


def _buffer(_place: Place) -> Tensor:
    import torch

    return torch.zeros(4096, dtype=torch.uint8)


def _views(inputs: Prepared) -> Call:
    import torch

    view, like, buffer = inputs.loaded.allocate_view_on, torch.empty(16, 16, dtype=torch.int32), inputs.arguments
    return lambda: [view(like, buffer, 64) for _ in range(inputs.place.size)]


def _bare_views(inputs: Prepared) -> Call:
    import torch

    buffer = inputs.arguments
    return lambda: [buffer[64:1088].view(torch.int32).view(16, 16) for _ in range(inputs.place.size)]


def _is_like_its_tensor(loaded: Any, _device: str) -> None:
    import torch

    before, mirror = locked(), torch.ones(3, 5, dtype=torch.int32)
    buffer = loaded.allocate_fast_host_buffer(mirror)
    assert buffer.shape == mirror.shape and buffer.dtype == mirror.dtype and not buffer.any()
    assert locked() - before >= buffer.nbytes, "the buffer is not locked"


def _has_the_bytes_at_its_offset(loaded: Any, _device: str) -> None:
    import torch

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
