"""Cases of attention on the CPU: Evoformer's and block-sparse, beside torch's attention with a mask of all scores."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from opforge.ops.cases.form import OURS, TIME, Call, Case, MissingError, Place
from opforge.ops.cases.rivals import DEEPSPEED

if TYPE_CHECKING:
    from torch import Tensor

    from opforge.ops.sparse_attention.layouts import BlockLists

SDPA, GATHERED = "torch SDPA, masked", "torch.bmm, gathered blocks"
ROWS, HEADS, SIZE = 64, 4, 32
"""Evoformer: rows of an alignment, heads, size of a head."""
SPARSE_HEADS, SPARSE_SIZE, SHARE = 4, 64, 0.12
"""Block-sparse: heads, size of a head, share of the blocks that a block of queries sees."""
LENGTHS = (1024, 4096)


class Evoformer(NamedTuple):
    """Queries, keys, values; a bias for keys and one for pairs; the result's gradient."""

    tensors: tuple[Tensor, Tensor, Tensor]
    biases: tuple[Tensor, Tensor]
    gradient: Tensor


Attend = Callable[[Evoformer], "Tensor"]
"""Attention of the inputs, by one of the contenders."""


class Sparse(NamedTuple):
    """Queries, keys, values [1, heads, length, size]; the layout, its lists, and the columns of each row."""

    tensors: tuple[Tensor, Tensor, Tensor]
    block: int
    layout: Tensor
    lists: BlockLists
    columns: Tensor


def _evoformer(place: Place) -> Evoformer:
    import torch

    random, dtype, length = torch.Generator().manual_seed(0), place.torch_dtype(), place.size
    shape = (1, ROWS, length, HEADS, SIZE)
    q, k, v, gradient = (torch.randn(shape, generator=random).to(dtype) for _ in range(4))
    keys = torch.randn((1, ROWS, 1, 1, length), generator=random).to(dtype)
    pairs = torch.randn((1, 1, HEADS, length, length), generator=random).to(dtype)
    return Evoformer((q, k, v), (keys, pairs), gradient)


def _ours(inputs: Evoformer) -> Tensor:
    from opforge.ops.evoformer import evoformer_attention

    return evoformer_attention(*inputs.tensors, inputs.biases)


def _masked(inputs: Evoformer) -> Tensor:
    import torch

    q, k, v = (tensor.transpose(2, 3) for tensor in inputs.tensors)
    mask = inputs.biases[0] + inputs.biases[1]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(2, 3)


def _forward(run: Attend, inputs: Evoformer) -> Call:
    return partial(run, inputs)


def _both_ways(run: Attend, inputs: Evoformer) -> Call:
    import torch

    leaves = [tensor.detach().clone().requires_grad_() for tensor in (*inputs.tensors, *inputs.biases)]
    own = Evoformer((leaves[0], leaves[1], leaves[2]), (leaves[3], leaves[4]), inputs.gradient)
    return lambda: torch.autograd.grad(run(own), leaves, own.gradient)


def _sparse(block: int, place: Place) -> Sparse:
    import torch

    from opforge.ops.sparse_attention.layouts import block_lists

    random, blocks = torch.Generator().manual_seed(0), place.size // block
    seen = max(1, round(blocks * SHARE))
    order = torch.rand((SPARSE_HEADS, blocks, blocks), generator=random).argsort(-1)
    columns = order[..., :seen].sort(-1).values
    layout = torch.zeros((SPARSE_HEADS, blocks, blocks), dtype=torch.int64).scatter_(2, columns, 1)
    shape = (1, SPARSE_HEADS, place.size, SPARSE_SIZE)
    q, k, v = (torch.randn(shape, generator=random).to(place.torch_dtype()) for _ in range(3))
    return Sparse((q, k, v), block, layout, block_lists(layout), columns)


def _sparse_ours(inputs: Sparse) -> Call:
    from opforge.ops.sparse_attention import sparse_attention

    return partial(sparse_attention, *inputs.tensors, inputs.layout, inputs.block, lists=inputs.lists)


def _sparse_masked(inputs: Sparse) -> Call:
    import torch

    hidden = inputs.layout.repeat_interleave(inputs.block, 1).repeat_interleave(inputs.block, 2) == 0
    mask = torch.zeros(hidden.shape, dtype=inputs.tensors[0].dtype).masked_fill_(hidden, -torch.inf)
    return partial(torch.nn.functional.scaled_dot_product_attention, *inputs.tensors, attn_mask=mask[None])


def _gathered(inputs: Sparse) -> Call:
    """Returns attention by torch.bmm over the blocks that a row sees: every row sees as many."""
    import torch

    q, k, v = inputs.tensors
    heads, rows, seen = inputs.columns.shape
    block, size = inputs.block, q.shape[-1]
    numbers = (torch.arange(heads)[:, None, None] * rows + inputs.columns).flatten()

    def call() -> Tensor:
        keys, values = (
            tensor.reshape(heads * rows, block, size)[numbers].view(heads * rows, seen * block, size)
            for tensor in (k, v)
        )
        scores = torch.bmm(q.reshape(heads * rows, block, size) * size**-0.5, keys.transpose(1, 2))
        return torch.bmm(scores.softmax(-1), values).view(q.shape)

    return call


def _deepspeed(_inputs: object) -> Call:
    raise MissingError("its kernels need a GPU")


def _no_amount(_size: int, _itemsize: int) -> float:
    return 1.0


def _evoformer_case(name: str, contender: Callable[[Attend, Evoformer], Call], goal: float) -> Case:
    return Case(
        name,
        (64, 128, 256),
        _evoformer,
        {OURS: partial(contender, _ours), DEEPSPEED: _deepspeed, SDPA: partial(contender, _masked)},
        (),
        _no_amount,
        unit=TIME,
        size_unit="tokens",
        dtypes=("float32", "bfloat16"),
        goals={SDPA: goal},
    )


def _sparse_case(block: int, goal: float) -> Case:
    return Case(
        f"blocks of {block}, {SHARE:.0%} seen",
        LENGTHS,
        partial(_sparse, block),
        {OURS: _sparse_ours, DEEPSPEED: _deepspeed, SDPA: _sparse_masked, GATHERED: _gathered},
        (),
        _no_amount,
        unit=TIME,
        size_unit="tokens",
        dtypes=("float32", "bfloat16"),
        quick=(1024,),
        goals={SDPA: {4096: goal}, GATHERED: {4096: 1.5}},
    )


EVOFORMER = (
    _evoformer_case("forward", _forward, 1.0),
    _evoformer_case("forward and backward", _both_ways, 1.0),
)
SPARSE = (_sparse_case(64, 3.0), _sparse_case(16, 2.0))
