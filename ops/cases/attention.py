"""Cases of attention: Evoformer's and block-sparse, beside torch's attention with a mask of all scores."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from opforge.foundation.lazy_torch import torch
from opforge.ops.cases.case import TIME, Call, Case, MissingError, Place, Prepared, Promise
from opforge.ops.cases.rivals import DEEPSPEED
from opforge.ops.cases.traffic import attention as attention_amount

if TYPE_CHECKING:
    from torch import Tensor

    from opforge.ops.sparse_attention.layouts import BlockLists

SDPA, GATHERED = "torch SDPA, masked", "torch.bmm, gathered blocks"
ROWS, HEADS, SIZE = 64, 4, 32
"""Evoformer: rows of an alignment, heads, size of a head."""
SPARSE_HEADS, SPARSE_SIZE, SHARE = 4, 64, 0.12
"""Block-sparse: heads, size of a head, share of the blocks that a block of queries sees."""
FEW_BLOCKS, SHARE_OF_FEW = 16, 0.4
"""Of fewer blocks than these, each sees a larger share."""
LENGTHS = (1024, 4096)
TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 4e-3}
PROMISES = (Promise.REPEATS, Promise.THREADS, Promise.ALIGNMENT, Promise.NAN)
"""The result has that of ACCURACY too, and gradients have not: they are computed from the result as it was rounded.

Infinite scores are not promised: of two of them the difference is NaN, and the reference says what torch does."""

Tensors = tuple["Tensor", "Tensor", "Tensor"]


def _memory(place: Place) -> tuple[Tensor, Tensor, Tensors]:
    """Returns memory for the result and the logarithms of sums, then queries, keys and values."""
    outer, inner, length, heads, _size = place.shape
    q, k, v = (place.draw(*place.shape, seed=seed) for seed in range(3))
    return torch.zeros_like(q), torch.zeros(outer, inner, heads, length, device=place.device), (q, k, v)


def _evoformer(place: Place) -> tuple[Any, ...]:
    """Returns attention with a bias for keys and one for pairs."""
    outer, inner, length, heads, size = place.shape
    out, log_sums, tensors = _memory(place)
    biases = [
        place.draw(outer, inner, 1, 1, length, seed=3),
        place.draw(outer, 1, heads, length, length, seed=4),
    ]
    return out, log_sums, *tensors, biases, 0, size**-0.5


def _both(place: Place) -> tuple[Any, ...]:
    """Returns the same tensors and biases after the gradient of the result."""
    _out, _log_sums, *tensors, biases, _multiplied, scale = _evoformer(place)
    return place.draw(*place.shape, seed=9), *tensors, biases, scale


def _attention(_out: Tensor, _sums: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    from opforge.ops import reference

    biases, _multiplied, scale = rest
    return reference.attention(q, k, v, biases, scale=scale)


class Attended(NamedTuple):
    """The inputs of a contender of Evoformer's attention."""

    tensors: Tensors
    biases: tuple[Tensor, ...]


Attend = Callable[[Attended], "Tensor"]
"""Attention of the inputs, by one of the contenders."""


def _ours(inputs: Attended) -> Tensor:
    from opforge.ops.evoformer import evoformer_attention

    return evoformer_attention(*inputs.tensors, inputs.biases)


def _masked(inputs: Attended) -> Tensor:
    q, k, v = (tensor.transpose(2, 3) for tensor in inputs.tensors)
    mask = inputs.biases[0] + inputs.biases[1]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(2, 3)


def _forward(run: Attend, inputs: Prepared) -> Call:
    return partial(run, Attended(inputs.arguments[2:5], tuple(inputs.arguments[5])))


def _both_ways(run: Attend, inputs: Prepared) -> Call:
    gradient, q, k, v, biases, _scale = inputs.arguments
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (q, k, v, *biases)]
    own = Attended((leaves[0], leaves[1], leaves[2]), tuple(leaves[3:]))
    return lambda: torch.autograd.grad(run(own), leaves, gradient)


def _result_and_gradients(name: str, loaded: Any) -> Callable[..., list[Tensor]]:
    """Returns a function of `_both`, or of `_sparse_both`, that returns the result and the gradients of all tensors."""
    forward, backward = getattr(loaded, f"{name}_"), getattr(loaded, f"{name}_backward_")

    def call(gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, biases: list[Tensor], *options: Any) -> list[Tensor]:
        outer, inner, length, heads, _size = q.shape
        out = torch.empty_like(q)
        log_sums = q.new_empty((outer, inner, heads, 2 * length), dtype=torch.float32)
        forward(out, log_sums, q, k, v, biases, 0, *options)
        gradients = [torch.empty_like(tensor) for tensor in (q, k, v)]
        sums = [torch.empty_like(bias, dtype=torch.float32) for bias in biases]
        inputs = (gradient, q, k, v, out, log_sums, torch.empty_like(log_sums), biases)
        backward(*gradients, sums, *inputs, 0, *options)
        return [out, *gradients, *(total.to(q.dtype) for total in sums)]

    return call


def _exact(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, biases: list[Tensor], *lists: Any, hidden: Any = None
) -> list[Tensor]:
    from opforge.ops import reference

    leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v, *biases)]
    out, _log_sums = reference.attention(leaves[0], leaves[1], leaves[2], leaves[3:], scale=lists[-1], hidden=hidden)
    return [out.detach(), *torch.autograd.grad(out, leaves, gradient)]


def _deepspeed(_inputs: object) -> Call:
    raise MissingError("its kernels need a GPU")


def _evoformer_operations(products: int, size: int) -> float:
    """Returns the multiplications and additions of so many products."""
    return 2.0 * products * ROWS * size * HEADS * size * SIZE


def _evoformer_amount(size: int, itemsize: int) -> float:
    """Returns the bytes that attention must move, and those of the biases of keys and of pairs."""
    return attention_amount(ROWS, size, HEADS, SIZE, itemsize) + itemsize * size * (ROWS + HEADS * size)


def _evoformer_case(
    name: str, contender: Callable[[Attend, Prepared], Call], goal: float, passes: int, products: int, **compared: Any
) -> Case:
    """Returns a case which moves each tensor in so many passes, at least, and computes so many products."""
    return Case(
        name,
        sizes=(64, 128, 256),
        shape=lambda size: (1, ROWS, size, HEADS, SIZE),
        ours=partial(contender, _ours),
        rivals={SDPA: partial(contender, _masked), DEEPSPEED: _deepspeed},
        amount=lambda size, itemsize: passes * _evoformer_amount(size, itemsize),
        operations=partial(_evoformer_operations, products),
        unit=TIME,
        size_unit="tokens",
        timed_dtypes=("float32", "bfloat16"),
        goals={SDPA: goal},
        **compared,
    )


def _compared(
    inputs: Callable[[Place], Any],
    function: str | Callable[[Any], Callable[..., Any]],
    reference: Callable[..., Any],
    shapes: tuple[tuple[int, ...], ...],
    promises: tuple[Promise, ...] = PROMISES,
    rows: int = 0,
) -> dict[str, Any]:
    """Returns what is compared: the result, of whose arguments the first `rows` have rows, or with gradients."""
    return {
        "inputs": inputs,
        "function": function,
        "reference": reference,
        "dtypes": ("float32", "bfloat16", "float16"),
        "shapes": shapes,
        "tolerance": TOLERANCE,
        "outputs": ("out", "log_sums") if isinstance(function, str) else (),
        "refused_dtypes": ("float64",),
        "strided": False,
        "promises": (*promises, Promise.ACCURACY, Promise.BATCH) if rows else promises,
        "batch": dict.fromkeys(range(rows), 0),
    }


def _layout(heads: int, blocks: int) -> Tensor:
    """Returns which blocks [heads, blocks, blocks] see which: each as many, others for each head."""
    seen = max(1, round(blocks * (SHARE if blocks >= FEW_BLOCKS else SHARE_OF_FEW)))
    order = torch.rand((heads, blocks, blocks), generator=torch.Generator().manual_seed(0)).argsort(-1)
    return torch.zeros((heads, blocks, blocks), dtype=torch.int64).scatter_(2, order[..., :seen], 1)


def _sparse(block: int, place: Place) -> tuple[Any, ...]:
    from opforge.ops.sparse_attention.layouts import block_lists

    _outer, _inner, length, heads, size = place.shape
    out, log_sums, tensors = _memory(place)
    lists = block_lists(_layout(heads, length // block))
    offsets, columns = (tensor.to(place.device) for tensor in (lists.offsets, lists.columns))
    return out, log_sums, *tensors, [], 0, offsets, columns, block, size**-0.5


def _sparse_both(block: int, place: Place) -> tuple[Any, ...]:
    _out, _log_sums, q, k, v, biases, _multiplied, *options = _sparse(block, place)
    return place.draw(*place.shape, seed=9), q, k, v, biases, *options


def _sparse_exact(gradient: Tensor, q: Tensor, *rest: Any) -> list[Tensor]:
    return _exact(gradient, q, *rest, hidden=_hidden(q.shape[3], q.shape[2], rest[-2]).to(q.device))


def _hidden(heads: int, length: int, block: int) -> Tensor:
    return _layout(heads, length // block).repeat_interleave(block, 1).repeat_interleave(block, 2) == 0


def _sparse_attention(_out: Tensor, _sums: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    from opforge.ops import reference

    *_others, block, scale = rest
    hidden = _hidden(q.shape[3], q.shape[2], block).to(q.device)
    return reference.attention(q, k, v, scale=scale, hidden=hidden)


class Sparse(NamedTuple):
    """Inputs of a contender of block-sparse attention: queries, keys, values [1, heads, length, size], the layout."""

    tensors: Tensors
    block: int
    layout: Tensor
    lists: BlockLists

    @property
    def columns(self) -> Tensor:
        """The numbers of the blocks that each sees, [heads, blocks, seen]."""
        heads, blocks, _ = self.layout.shape
        return self.layout.nonzero()[:, 2].view(heads, blocks, -1)


def _of_heads(inputs: Prepared) -> Sparse:
    from opforge.ops.sparse_attention.layouts import block_lists

    q, k, v = (tensor[0].transpose(1, 2).contiguous() for tensor in inputs.arguments[2:5])
    block = inputs.arguments[-2]
    layout = _layout(q.shape[1], q.shape[2] // block)
    return Sparse((q, k, v), block, layout, block_lists(layout))


def _sparse_ours(inputs: Prepared) -> Call:
    from opforge.ops.sparse_attention import sparse_attention

    own = _of_heads(inputs)
    return partial(sparse_attention, *own.tensors, own.layout, own.block, lists=own.lists)


def _sparse_masked(inputs: Prepared) -> Call:
    own = _of_heads(inputs)
    hidden = _hidden(own.layout.shape[0], own.tensors[0].shape[2], own.block)
    mask = torch.zeros(hidden.shape, dtype=own.tensors[0].dtype).masked_fill_(hidden, -torch.inf)
    return partial(torch.nn.functional.scaled_dot_product_attention, *own.tensors, attn_mask=mask[None])


def _gathered(inputs: Prepared) -> Call:
    """Returns attention by torch.bmm over the blocks that a row sees: every row sees as many."""
    own = _of_heads(inputs)
    q, k, v = own.tensors
    heads, rows, seen = own.columns.shape
    block, size = own.block, q.shape[-1]
    numbers = (torch.arange(heads)[:, None, None] * rows + own.columns).flatten()

    def call() -> Tensor:
        keys, values = (
            tensor.reshape(heads * rows, block, size)[numbers].view(heads * rows, seen * block, size)
            for tensor in (k, v)
        )
        scores = torch.bmm(q.reshape(heads * rows, block, size) * size**-0.5, keys.transpose(1, 2))
        return torch.bmm(scores.softmax(-1), values).view(q.shape)

    return call


SPARSE_PROMISES = tuple(promise for promise in PROMISES if promise is not Promise.NAN)
"""A NaN in a value that a query does not see does not reach it; the reference multiplies it by 0."""


def _shapes(block: int) -> tuple[tuple[int, ...], ...]:
    return (1, 1, block, 1, 16), (2, 2, 5 * block, 2, 20)


def _sparse_case(block: int, goal: float) -> Case:
    return Case(
        f"blocks of {block}, {SHARE:.0%} seen",
        **_compared(
            partial(_sparse, block), "sparse_attention_", _sparse_attention, _shapes(block), SPARSE_PROMISES, 5
        ),
        sizes=LENGTHS,
        shape=lambda size: (1, 1, size, SPARSE_HEADS, SPARSE_SIZE),
        ours=_sparse_ours,
        rivals={DEEPSPEED: _deepspeed, SDPA: _sparse_masked, GATHERED: _gathered},
        amount=lambda size, itemsize: attention_amount(1, size, SPARSE_HEADS, SPARSE_SIZE, itemsize),
        operations=lambda size: 4.0 * SHARE * size * size * SPARSE_HEADS * SPARSE_SIZE,
        unit=TIME,
        size_unit="tokens",
        timed_dtypes=("float32", "bfloat16"),
        quick=(1024,),
        goals={SDPA: {4096: goal}, GATHERED: {4096: 1.5}},
    )


SHAPES = ((1, 2, 0, 2, 8), (2, 1, 5, 1, 16), (1, 2, 70, 2, 20), (3, 1, 33, 3, 40))
EVOFORMER = (
    _evoformer_case(
        "forward",
        _forward,
        1.0,
        1,
        2,
        **_compared(_evoformer, "evoformer_attention_", _attention, SHAPES, rows=6),
    ),
    _evoformer_case(
        "forward and backward",
        _both_ways,
        1.0,
        3,  # each tensor has a gradient
        6,
        **_compared(_both, partial(_result_and_gradients, "evoformer_attention"), _exact, SHAPES),
    ),
)
SPARSE_RESULTS = (_sparse_case(64, 3.0), _sparse_case(16, 2.0))
SPARSE = (
    *SPARSE_RESULTS,
    *(
        Case(
            f"result and gradients, blocks of {block}",
            **_compared(
                partial(_sparse_both, block),
                partial(_result_and_gradients, "sparse_attention"),
                _sparse_exact,
                _shapes(block),
                SPARSE_PROMISES,
            ),
            large_shape=_shapes(block)[1],  # has work for several threads
        )
        for block in (64, 128)
    ),
)
