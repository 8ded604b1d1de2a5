"""The attention core as a torch op with gradients, `opforge_attention::attention`, over the libraries of its builders.

Tensors of the host are computed by C++, those of other devices by the Triton kernels of opforge.ops.triton.attention.

It is what the front ends call: Evoformer attention and sparse attention. torch.compile traces it as one op.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from opforge.fast_path import library
from opforge.ops import missing_derivatives
from opforge.ops.host_op import host_op, on_host

library.record_kernels()  # compiled graphs depend on what is registered below
LIBRARY = torch.library.Library("opforge_attention", "FRAGMENT")  # type: ignore[no-untyped-call]
OPTIONS = "Tensor? offsets, Tensor? columns, int block, int multiplied, float scale, bool causal"
SCHEMA = f"attention(Tensor q, Tensor k, Tensor v, Tensor[] biases, {OPTIONS}) -> (Tensor, Tensor)"
BACKWARD_SCHEMA = (
    "attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor log_sums, Tensor[] biases, "
    f"bool[] bias_needs, {OPTIONS}) -> Tensor[]"
)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    biases: Sequence[Tensor] = (),
    *,
    offsets: Tensor | None = None,
    columns: Tensor | None = None,
    block: int = 0,
    multiplied: int = 0,
    scale: float | None = None,
    causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns softmax(q k^T * scale + biases) v, and the logarithm of each query's sum, which has no gradient.

    Args:
        q: Queries, [outer, inner, length, heads, size], float32, bfloat16 or float16. Sizes are 1 to 256.
        k: Keys, [outer, inner, keys, heads, size].
        v: Values, of k's shape.
        biases: Up to three tensors that broadcast to the scores, [outer, inner, heads, length, keys]; the last size
            is that of the scores.
        offsets: int32, where the list of each row of blocks of each head begins in `columns`, and the end of the last
            one. None: each query sees all keys.
        columns: int32, the blocks of keys that a block of queries sees.
        block: Keys and queries of a block: 16, 32, 64 or 128.
        multiplied: The bit 1 << i makes biases[i] a mask: a key is hidden where it is 0.
        scale: 1 / sqrt(size) by default.
        causal: Whether query i sees keys 0 to i only.

    Raises RuntimeError for shapes, dtypes or devices that do not fit, and for forward-mode differentiation.
    """
    named = {"k": k, "v": v} | {f"biases[{i}]": bias for i, bias in enumerate(biases)}
    for name, tensor in named.items():
        if tensor.device != q.device:
            raise RuntimeError(f"{name} is on {tensor.device}, expected {q.device}, where q is: move it with .to()")
    if not torch.compiler.is_compiling():
        missing_derivatives.refuse_forward(_attention, (q, *named.values()))
    if scale is None:
        scale = q.shape[-1] ** -0.5 if q.dim() and q.shape[-1] else 1.0
    biases = list(biases) or [q.new_empty(0)]
    result: tuple[Tensor, Tensor] = _attention(q, k, v, biases, offsets, columns, block, multiplied, scale, causal)
    return result


def _present(biases: Sequence[Tensor]) -> list[int]:
    """Returns the numbers of the biases that are one. A tensor of shape [0] stands for none.

    The list has it in place of nothing: a package of AOTInductor passes None for an empty list, which is an error.
    """
    return [i for i, bias in enumerate(biases) if bias.shape != (0,)]


def _calls(has_blocks: bool) -> tuple[Any, Any]:
    """Returns the functions of the library, forward and backward: with lists of blocks or without."""
    op = host_op("SparseAttnBuilder" if has_blocks else "EvoformerAttnBuilder")
    if has_blocks:
        return op.sparse_attention_, op.sparse_attention_backward_
    return op.evoformer_attention_, op.evoformer_attention_backward_


def _dense(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns tensors whose last dimension has no gaps, which the kernels need. Copies only if necessary."""
    return [tensor if tensor.dim() and tensor.stride(-1) == 1 else tensor.contiguous() for tensor in tensors]


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    biases: list[Tensor],
    offsets: Tensor | None,
    columns: Tensor | None,
    block: int,
    multiplied: int,
    scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    biases = [biases[i] for i in _present(biases)]
    if not on_host(q):
        from opforge.ops.triton import attention as device

        options = device.Options(biases, offsets, columns, block, multiplied, scale, causal)
        return device.forward(q, k, v, options)
    forward, _ = _calls(offsets is not None)
    out, log_sums = _fake(q)
    lists = () if offsets is None else (offsets, columns, block)
    biases = [bias.contiguous() for bias in biases]
    forward(out, log_sums, *_dense((q, k, v)), biases, multiplied, *lists, scale, causal)
    return out, log_sums


def _fake(q: Tensor, *_others: Any) -> tuple[Tensor, Tensor]:
    # Twice the queries: behind the logarithms is what float32 cannot hold of them.
    sums = [*q.shape[:2], q.shape[3], 2 * q.shape[2]] if q.dim() == 5 else [0]
    if not on_host(q):
        return q.new_empty(q.shape), q.new_empty(sums, dtype=torch.float32)
    # q's order of dimensions: a transposed q has a result that is transposed back for nothing.
    return torch.empty_like(_dense((q,))[0]), q.new_empty(sums, dtype=torch.float32)


def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sums: Tensor,
    biases: list[Tensor],
    bias_needs: list[bool],
    offsets: Tensor | None,
    columns: Tensor | None,
    block: int,
    multiplied: int,
    scale: float,
    causal: bool,
) -> list[Tensor]:
    sums = _sums(biases, bias_needs)
    present = _present(biases)
    given, own = [sums[i] for i in present], [biases[i] for i in present]
    if not on_host(q):
        from opforge.ops.triton import attention as device

        options = device.Options(own, offsets, columns, block, multiplied, scale, causal)
        needs = [bias_needs[i] for i in present]
        gradients = device.backward(dout, q, k, v, out, log_sums, needs, options, (None, None, None, *given))[:3]
    else:
        _, backward = _calls(offsets is not None)
        lists = () if offsets is None else (offsets, columns, block)
        gradients = [torch.empty_like(tensor) for tensor in _dense((q, k, v))]
        inputs = (*_dense((dout, q, k, v, out)), log_sums, torch.empty_like(log_sums))
        own = [bias.contiguous() for bias in own]
        backward(*gradients, given, *inputs, own, multiplied, *lists, scale, causal)
    return gradients + [total.to(bias.dtype) for total, bias in zip(sums, biases, strict=True)]


def _sums(biases: list[Tensor], bias_needs: list[bool]) -> list[Tensor]:
    """Returns memory for the gradients of biases, in float32: empty for those without a gradient."""
    shapes = [bias.shape if needed else (0,) for bias, needed in zip(biases, bias_needs, strict=True)]
    return [bias.new_empty(shape, dtype=torch.float32) for bias, shape in zip(biases, shapes, strict=True)]


def _fake_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sums: Tensor,
    biases: list[Tensor],
    bias_needs: list[bool],
    *_options: Any,
) -> list[Tensor]:
    layout = torch.preserve_format if on_host(q) else torch.contiguous_format
    gradients = [torch.empty_like(tensor, memory_format=layout) for tensor in _dense((q, k, v))]
    sums = _sums(biases, bias_needs)
    return gradients + [total.to(bias.dtype) for total, bias in zip(sums, biases, strict=True)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, biases, offsets, columns, *ctx.options = inputs
    ctx.bias_needs = [bias.requires_grad for bias in biases]
    ctx.has_blocks = offsets is not None
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    lists = (offsets, columns) if ctx.has_blocks else ()
    ctx.save_for_backward(q, k, v, *output, *lists, *biases)


def _autograd(ctx: Any, dout: Tensor | None, _log_sums: None) -> Any:
    q, k, v, out, log_sums, *others = ctx.saved_tensors
    lists, biases = (others[:2], others[2:]) if ctx.has_blocks else ([None, None], others)
    if dout is None:
        return None, None, None, [None] * len(biases), *[None] * 6
    results = _gradient(dout, q, k, v, out, log_sums, biases, ctx.bias_needs, *lists, *ctx.options)
    of_biases = [total if needed else None for total, needed in zip(results[3:], ctx.bias_needs, strict=True)]
    return *results[:3], of_biases, *[None] * 6


def _define(schema: str, run: Any, fake: Any) -> Any:
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    LIBRARY.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"opforge_attention::{name}", fake, lib=LIBRARY)
    return getattr(torch.ops.opforge_attention, name).default


_attention = _define(SCHEMA, _forward, _fake)
_gradient = _define(BACKWARD_SCHEMA, _backward, _fake_backward)
missing_derivatives.refuse(_gradient, LIBRARY)
torch.library.register_autograd(_attention, _autograd, setup_context=_save, lib=LIBRARY)
