"""Evoformer attention: DeepSpeed's functions, and `evoformer_attention`, over opforge's attention core.

The first argument of DeepSpeed's functions is the op of the host, or that of GPUs; the op's module binds it.

softmax(q k^T / sqrt(size) + biases) v for each row of an alignment and each head, without the matrix of scores. Tensors
are [batch, rows, length, heads, size]. docs/attention.md has the details.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from opforge.ops.attention import attention as core

MOST_BIASES = 2


def evoformer_attention(q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor | None] = ()) -> Tensor:
    """Returns softmax(q k^T / sqrt(size) + biases) v, in q's shape and dtype. Gradients have the same bits each time.

    Args:
        q: Queries, [batch, rows, length, heads, size], float32, bfloat16 or float16. Sizes are 1 to 256.
        k: Keys, of q's shape; their length may be another one.
        v: Values, of k's shape.
        biases: Up to two tensors that are added to the scores, [batch, rows, heads, length, keys]. Each size but the
            last may be 1 instead. None stands for no bias.

    Raises RuntimeError for shapes, dtypes or devices that do not fit.
    """
    present = [bias for bias in biases if bias is not None]
    if len(present) > MOST_BIASES:
        raise RuntimeError(
            f"biases has {len(present)} tensors, expected at most {MOST_BIASES}: add some of them up before"
        )
    return core(q, k, v, present)[0]


def attention(op: Any, q: Tensor, k: Tensor, v: Tensor, bias1: Tensor, bias2: Tensor, o: Tensor, lse: Tensor) -> None:
    """Writes the result to `o`, and the logarithms of the sums to `lse`, float32 [batch * rows, heads, length or more].

    A bias without elements is none.
    """
    biases = [bias for bias in (bias1, bias2) if bias.numel()]
    op.evoformer_attention_(o, lse, q, k, v, biases, 0, _scale(q))


def attention_bwd(
    op: Any,
    go: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    delta: Tensor,
    bias1: Tensor,
    bias2: Tensor,
    gq: Tensor,
    gk: Tensor,
    gv: Tensor,
    gb1: Tensor,
    gb2: Tensor,
) -> None:
    """Writes the gradients to `gq`, `gk` and `gv`, and to `gb1` and `gb2`, float32, unless they have no elements.

    `o` and `lse` are what `attention` has written; `delta` is memory of the size of `lse`.
    """
    pairs = [(bias, gradient) for bias, gradient in ((bias1, gb1), (bias2, gb2)) if bias.numel()]
    biases, sums = [bias for bias, _ in pairs], [gradient for _, gradient in pairs]
    go = go.contiguous()
    op.evoformer_attention_backward_(gq, gk, gv, sums, go, q, k, v, o, lse, delta, biases, 0, _scale(q))


def _scale(q: Tensor) -> float:
    return float(q.shape[-1]) ** -0.5 if q.dim() and q.shape[-1] else 1.0


def functions(op: Any) -> dict[str, Any]:
    """Returns the Python functions of the loaded op evoformer_attn."""
    return {function.__name__: partial(function, op) for function in (attention, attention_bwd)}


def bind(kernels: Any) -> dict[str, Any]:
    """Makes the functions for GPUs launch these kernels from now on, and returns the functions by name."""
    from opforge.ops.triton import registry
    from opforge.ops.triton.attention import Evoformer

    registry.bind(kernels)
    return functions(Evoformer())
