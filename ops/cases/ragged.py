"""Cases of the ops of ragged batches: the cache, attention over its pages, and experts, beside torch and a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.ops.cases.form import OURS, TIME, Call, Case, MissingError, Place
from opforge.ops.cases.memory import COPY, copy_of
from opforge.ops.cases.rivals import DEEPSPEED, TORCH
from opforge.ops.cases.traffic import TRAFFIC, decoding, of_experts

if TYPE_CHECKING:
    from torch import Tensor

HEADS, GROUP, SIZE, BLOCK = 8, 4, 128, 64
WIDTH, EXPERTS, TOP = 4096, 8, 2
SEQUENCES, CHOICES, CHOSEN = 16, 256, 8


class Sequence(NamedTuple):
    """One sequence, its cache and one more token of it, with the tensors that describe them."""

    op: Any
    cache: Tensor
    q: Tensor
    rows: Tensor
    described: tuple[Tensor, ...]
    kept: Tensor
    """The list of pages, whose address is among the tensors."""


def _sequence(tokens: int, seen: int, place: Place) -> Sequence:
    import torch

    from opforge.builders.cpu.transformer.ragged_ops import RaggedOpsBuilder

    op: Any = RaggedOpsBuilder().load()
    random = torch.Generator().manual_seed(0)
    pages = -(-(tokens + seen) // BLOCK)
    order = torch.randperm(pages, generator=random).to(torch.int32)
    sizes = ((pages, BLOCK, 2, HEADS, SIZE), (tokens, HEADS * GROUP * SIZE), (tokens, HEADS * SIZE))
    cache, q, rows = (torch.randn(shape, generator=random).to(place.torch_dtype()) for shape in sizes)
    states = torch.tensor([[0, tokens, seen, 0]], dtype=torch.int32)
    owners = torch.zeros(tokens, dtype=torch.int32)
    pointers = torch.tensor([order.data_ptr()])
    head = torch.tensor([tokens, 1], dtype=torch.int32)
    return Sequence(op, cache, q, rows, (head, states, owners, pointers), order)


def _decode(place: Place) -> Sequence:
    return _sequence(1, place.size - 1, place)


class Decoding(NamedTuple):
    """One more token of several sequences, whose keys and values are in pages one after the other."""

    op: Any
    cache: Tensor
    q: Tensor
    atoms: Tensor
    kept: tuple[Tensor, ...]


def _decodings(place: Place) -> Decoding:
    import torch

    from opforge.builders.cpu.transformer.ragged_ops import RaggedOpsBuilder

    op: Any = RaggedOpsBuilder().load()
    random = torch.Generator().manual_seed(0)
    pages = place.size // BLOCK
    cache = torch.randn(SEQUENCES * pages, BLOCK, 2, HEADS, SIZE, generator=random).to(place.torch_dtype())
    q = torch.randn(SEQUENCES, HEADS * GROUP * SIZE, generator=random).to(place.torch_dtype())
    lists = torch.arange(SEQUENCES * pages, dtype=torch.int32).view(SEQUENCES, pages)
    states = torch.tensor([[i, 1, place.size - 1, 0] for i in range(SEQUENCES)], dtype=torch.int32)
    pointers = torch.tensor([row.data_ptr() for row in lists])
    atoms, head = torch.zeros(SEQUENCES, 8, dtype=torch.int32), torch.tensor([SEQUENCES] * 2, dtype=torch.int32)
    op.build_atoms(atoms, head, states, pointers, 128, BLOCK)
    return Decoding(op, cache, q, atoms, (lists, pointers))


def _decode_all(inputs: Decoding) -> Call:
    import torch

    op, cache, q, atoms = inputs.op, inputs.cache, inputs.q, inputs.atoms
    out, keys, values = torch.empty_like(q), cache[:, :, 0], cache[:, :, 1]
    return lambda: op.flash_attn_by_atoms(out, q, keys, values, atoms, SIZE**-0.5, True)


def _products(inputs: Decoding) -> Call:
    """Returns the same by two products, over keys and values that lie together already."""
    import torch

    heads = inputs.cache.view(SEQUENCES, -1, 2, HEADS, SIZE).permute(2, 0, 3, 1, 4).flatten(1, 2).contiguous()
    keys, values = heads.unbind(0)
    queries = inputs.q.view(SEQUENCES * HEADS, GROUP, SIZE)
    return lambda: torch.bmm((torch.bmm(queries, keys.transpose(1, 2)) * SIZE**-0.5).softmax(-1), values)


class Choice(NamedTuple):
    """Logits of tokens, and memory for what is chosen."""

    op: Any
    counts: Tensor
    outs: tuple[Tensor, ...]
    logits: Tensor
    head: Tensor


def _choices(place: Place) -> Choice:
    import torch

    from opforge.builders.cpu.transformer.ragged_ops import RaggedOpsBuilder

    op: Any = RaggedOpsBuilder().load()
    logits = torch.randn(place.size, CHOICES, generator=torch.Generator().manual_seed(0)).to(place.torch_dtype())
    outs = tuple(torch.zeros(place.size, CHOSEN, dtype=dtype) for dtype in (torch.float32, torch.int32, torch.int32))
    head = torch.tensor([place.size, 1], dtype=torch.int32)
    return Choice(op, torch.zeros(CHOICES, dtype=torch.int32), outs, logits, head)


def _choose(inputs: Choice) -> Call:
    op, counts, outs, logits, head = inputs

    def choose() -> None:
        counts.zero_()
        op.top_k_gating(counts, *outs, logits, head)

    return choose


def _torch_choose(inputs: Choice) -> Call:
    return lambda: inputs.logits.float().softmax(-1).topk(CHOSEN, -1)


def _copied(place: Place) -> Sequence:
    return _sequence(place.size, 0, place)


def decode_amount(size: int, itemsize: int) -> float:
    """Returns the bytes of the keys and values of `size` tokens."""
    return decoding(size, HEADS, SIZE, itemsize)


def copy_amount(size: int, itemsize: int) -> float:
    """Returns the bytes of the keys and values of `size` tokens, read and written."""
    return TRAFFIC["linear_kv_copy"].amount(size * HEADS * SIZE, itemsize)


def _attend(inputs: Sequence) -> Call:
    import torch

    op, cache, q, described = inputs.op, inputs.cache, inputs.q, inputs.described
    atoms, out = torch.zeros(1, 8, dtype=torch.int32), torch.empty_like(q)
    op.build_atoms(atoms, described[0], described[1], described[3], 128, BLOCK)
    keys, values = cache[:, :, 0], cache[:, :, 1]
    # The list of pages, whose address is in the atoms, must live as long as the call.
    return lambda: inputs.op.flash_attn_by_atoms(out, q, keys, values, atoms, SIZE**-0.5, True)


def _torch_attend(inputs: Sequence) -> Call:
    """Returns attention by torch over keys and values that lie together already."""
    from torch.nn import functional

    keys, values = inputs.cache.flatten(0, 1).permute(1, 2, 0, 3).contiguous()[:, None].unbind(0)
    query = inputs.q.view(1, HEADS * GROUP, 1, SIZE)
    return lambda: functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)


def _fill(inputs: Sequence) -> Call:
    cache, q, rows = inputs.cache, inputs.q, inputs.rows
    return lambda: inputs.op.linear_kv_copy(cache, q, rows, rows, *inputs.described)


def _torch_fill(inputs: Sequence) -> Call:
    """Returns the same by torch, for pages whose order is known to Python."""
    import torch

    rows = inputs.rows.view(-1, HEADS, SIZE)
    places = (inputs.kept.long()[:, None] * BLOCK + torch.arange(BLOCK)).flatten()[: rows.shape[0]]
    flat = inputs.cache.flatten(0, 1)

    def fill() -> None:
        flat[:, 0].index_copy_(0, places, rows)
        flat[:, 1].index_copy_(0, places, rows)

    return fill


class Tokens(NamedTuple):
    """Rows of experts, with the scores and rows of each token."""

    op: Any
    out: Tensor
    rows: Tensor
    scores: Tensor
    slots: Tensor
    counts: Tensor


def _tokens(place: Place) -> Tokens:
    import torch

    from opforge.builders.cpu.transformer.ragged_ops import RaggedOpsBuilder

    op: Any = RaggedOpsBuilder().load()
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(place.size * TOP, WIDTH, generator=random).to(place.torch_dtype())
    slots = torch.randperm(place.size * TOP, generator=random).to(torch.int32).view(-1, TOP)
    scores = torch.rand(place.size, TOP, generator=random)
    counts = torch.zeros(EXPERTS, dtype=torch.int32)
    return Tokens(op, torch.empty_like(rows[: place.size]), rows, scores, slots, counts)


def gather_amount(size: int, itemsize: int) -> float:
    """Returns the bytes of the rows of all experts and of the tokens."""
    return of_experts(TOP).amount(size * WIDTH, itemsize)


def _gather(inputs: Tokens) -> Call:
    return lambda: inputs.op.moe_gather(*inputs[1:], True)


def _torch_gather(inputs: Tokens) -> Call:
    slots = inputs.slots.long()

    def gather() -> Tensor:
        scores = (inputs.scores / inputs.scores.sum(1, keepdim=True)).to(inputs.rows.dtype)
        return (inputs.rows[slots] * scores[..., None]).sum(1)

    return gather


def _deepspeed(inputs: Any) -> Call:
    raise MissingError("its ragged ops need a GPU")


def _case(
    name: str,
    setup: Callable[[Place], Any],
    calls: tuple[Callable[[Any], Call], Callable[[Any], Call]],
    amount: Callable[[int, int], float],
    sizes: tuple[int, ...],
    bytes_of: Callable[[Any], float],
) -> Case:
    return Case(
        name,
        sizes,
        setup,
        {OURS: calls[0], TORCH: calls[1], DEEPSPEED: _deepspeed, COPY: lambda inputs: copy_of(bytes_of(inputs))},
        (COPY,),
        amount,
        size_unit="tokens",
        dtypes=("float32", "bfloat16"),
    )


def _bytes_of_pages(inputs: Sequence) -> float:
    return decode_amount(int(inputs.described[1][0, 1:3].sum()), inputs.q.itemsize)


RAGGED_OPS = (
    _case("attention of one query", _decode, (_attend, _torch_attend), decode_amount, (256, 4096), _bytes_of_pages),
    _case(
        "keys and values to pages",
        _copied,
        (_fill, _torch_fill),
        copy_amount,
        (256, 4096),
        lambda inputs: copy_amount(inputs.rows.shape[0], inputs.rows.itemsize),
    ),
    _case(
        "tokens from two experts",
        _tokens,
        (_gather, _torch_gather),
        gather_amount,
        (256, 4096),
        lambda inputs: gather_amount(inputs.out.shape[0], inputs.out.itemsize),
    ),
    Case(
        f"attention of a query each of {SEQUENCES} sequences",
        (1024, 4096),
        _decodings,
        {
            OURS: _decode_all,
            "torch bmm": _products,
            DEEPSPEED: _deepspeed,
            COPY: lambda inputs: copy_of(inputs.cache.nbytes),
        },
        (COPY,),
        lambda size, itemsize: SEQUENCES * decode_amount(size, itemsize),
        size_unit="tokens",
        dtypes=("float32", "bfloat16"),
        quick=(1024,),
        goals={"torch bmm": 1.2, "reference": 0.6},
    ),
    Case(
        f"{CHOSEN} of {CHOICES} experts",
        (256, 2048),
        _choices,
        {OURS: _choose, TORCH: _torch_choose, DEEPSPEED: _deepspeed},
        (TORCH,),
        lambda size, itemsize: size,
        TIME,
        "tokens",
        dtypes=("float32", "bfloat16"),
        quick=(2048,),
        goals={TORCH: 1.5},
    ),
)
BARE = "torch view, unchecked"


class Buffer(NamedTuple):
    """A buffer and how often a view of it is made."""

    memory: Tensor
    views: int


def _buffer(place: Place) -> Buffer:
    import torch

    return Buffer(torch.zeros(4096, dtype=torch.uint8), place.size)


def _views(inputs: Buffer) -> Call:
    import torch

    from opforge.builders.cpu.transformer.ragged_ops import RaggedUtilsBuilder

    view, like = RaggedUtilsBuilder().load().allocate_view_on, torch.empty(16, 16, dtype=torch.int32)
    return lambda: [view(like, inputs.memory, 64) for _ in range(inputs.views)]


def _bare_views(inputs: Buffer) -> Call:
    import torch

    return lambda: [inputs.memory[64:1088].view(torch.int32).view(16, 16) for _ in range(inputs.views)]


RAGGED_UTILS = (
    Case(
        "allocate_view_on",
        (1, 100),
        _buffer,
        {OURS: _views, DEEPSPEED: _deepspeed, BARE: _bare_views},
        (BARE,),
        lambda size, itemsize: size,
        TIME,
        "views",
        quick=(100,),
    ),
)
