"""Random layerwise token dropping (arXiv:2211.11586): DeepSpeed's functions, and gathers that have gradients.

The first argument of DeepSpeed's functions is the loaded op; the op's module holds them with that argument bound.
Activations may have any dtype. Indexes are int32, and may be neither negative nor past the end.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from opforge.ops.host_op import host_op, on_host


def token_sort_(op: Any, unsorted_token_ids: Tensor, original_tokens: int) -> Tensor:
    """Sorts each row of token numbers in place, int32 [layers, batch, reserved], and returns the tensor."""
    op.tokens_sort_(unsorted_token_ids, original_tokens)
    return unsorted_token_ids


def token_gather(op: Any, activations: Tensor, sorted_indices: Tensor, batch_first: bool) -> Tensor:
    """Returns the retained tokens.

    Args:
        op: The loaded op.
        activations: [batch, tokens, channels], or [tokens, batch, channels] unless `batch_first`.
        sorted_indices: int32 [batch, retained].
        batch_first: The order of the dimensions of the activations and of the result.
    """
    if activations.dim() != 3 or sorted_indices.dim() != 2:
        order = "[batch, tokens, channels]" if batch_first else "[tokens, batch, channels]"
        raise ValueError(
            f"activations has shape {tuple(activations.shape)} and sorted_indices {tuple(sorted_indices.shape)}, "
            f"expected {order} and [batch, retained tokens]"
        )
    retained = sorted_indices.shape[-1]
    shape = list(activations.shape)
    shape[1 if batch_first else 0] = retained
    out = activations.new_empty(shape)
    op.tokens_gather_(out, activations.contiguous(), sorted_indices.contiguous(), batch_first)
    return out


def token_scatter_(
    op: Any, all_activations: Tensor, layer_activations: Tensor, sorted_indices: Tensor, batch_first: bool
) -> Tensor:
    """Writes the retained tokens back to their places, and returns `all_activations`.

    Of two equal indexes the last one counts. On a GPU they must lie together, as sorted ones do: otherwise nothing
    orders them, and a token may have parts of both.
    """
    op.tokens_scatter_(all_activations, layer_activations.contiguous(), sorted_indices.contiguous(), batch_first)
    return all_activations


def mask_gather_bert(op: Any, dense_mask: Tensor, sorted_indices: Tensor) -> Tensor:
    """Returns the rows and columns of a mask that each layer retains.

    Args:
        op: The loaded op.
        dense_mask: [batch, 1, tokens, tokens], of any dtype.
        sorted_indices: int32 [layers, batch, retained].

    Returns:
        [layers, batch, 1, retained, retained]. Each layer has its own indexes, as in `bert_sample_tokens`; the kernel
        of DeepSpeed uses those of the first layer for all.
    """
    if sorted_indices.dim() != 3:
        raise ValueError(
            f"sorted_indices has shape {tuple(sorted_indices.shape)}, expected [layers, batch, retained tokens]"
        )
    layers, batch, retained = sorted_indices.shape
    out = dense_mask.new_empty((layers, batch, 1, retained, retained))
    op.mask_gather_(out, dense_mask.contiguous(), sorted_indices.contiguous())
    return out


def mask_gather_gpt(op: Any, dense_mask: Tensor, truncated_seq_len: int) -> Tensor:
    """Returns the mask of the first tokens, [batch, 1, truncated, truncated], in memory of its own."""
    if dense_mask.dim() != 4 or not 0 <= truncated_seq_len <= min(dense_mask.shape[2:]):
        raise ValueError(
            f"truncated_seq_len is {truncated_seq_len} and dense_mask has shape {tuple(dense_mask.shape)}, expected a"
            " mask [batch, 1, tokens, tokens] of at least as many tokens"
        )
    return dense_mask[:, :, :truncated_seq_len, :truncated_seq_len].clone(memory_format=torch.contiguous_format)


def _op(tensor: Tensor) -> Any:
    """Returns the op of the host, or that of GPUs."""
    if on_host(tensor):
        return host_op("RandomLTDBuilder")
    from opforge.ops.triton.transformer.tokens import Tokens

    return Tokens()


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(activations: Tensor, indices: Tensor, batch_first: bool) -> Tensor:
        return token_gather(_op(activations), activations, indices, batch_first)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        activations, indices, ctx.batch_first = inputs
        ctx.save_for_backward(indices)
        ctx.shape = activations.shape

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (indices,) = ctx.saved_tensors
        return _Spread.apply(gradients[0], indices, ctx.shape, ctx.batch_first), None, None  # type: ignore[no-untyped-call]


class _Spread(torch.autograd.Function):
    """Puts tokens at their places among zeros: the gradient of a gather, whose own gradient is a gather."""

    @staticmethod
    def forward(part: Tensor, indices: Tensor, shape: torch.Size, batch_first: bool) -> Tensor:
        return token_scatter_(_op(part), part.new_zeros(shape), part, indices, batch_first)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _part, indices, _shape, ctx.batch_first = inputs
        ctx.save_for_backward(indices)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (indices,) = ctx.saved_tensors
        return gather_tokens(gradients[0], indices, ctx.batch_first), None, None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(activations: Tensor, part: Tensor, indices: Tensor, batch_first: bool) -> Tensor:
        whole = activations.clone(memory_format=torch.contiguous_format)
        return token_scatter_(_op(part), whole, part, indices, batch_first)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _activations, _part, indices, ctx.batch_first = inputs
        ctx.save_for_backward(indices)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (indices,) = ctx.saved_tensors
        part = gather_tokens(gradients[0], indices, ctx.batch_first)
        whole = scatter_tokens(gradients[0], torch.zeros_like(part), indices, ctx.batch_first)
        return whole, part, None, None


def gather_tokens(activations: Tensor, indices: Tensor, batch_first: bool = True) -> Tensor:
    """Returns the tokens at `indices`, int32 [batch, retained] without repetitions in a row. It has gradients."""
    out: Tensor = _Gather.apply(activations, indices, batch_first)  # type: ignore[no-untyped-call]
    return out


def scatter_tokens(activations: Tensor, part: Tensor, indices: Tensor, batch_first: bool = True) -> Tensor:
    """Returns the activations with `part` in place of the tokens at `indices`. It has gradients.

    A token that is replaced gets no gradient; DeepSpeed's backward leaves it the gradient of its replacement.
    """
    out: Tensor = _Scatter.apply(activations, part, indices, batch_first)  # type: ignore[no-untyped-call]
    return out


def functions(op: Any) -> dict[str, Any]:
    """Returns the Python functions of the loaded op random_ltd."""
    bound = (token_sort_, token_gather, token_scatter_, mask_gather_bert, mask_gather_gpt)
    return {function.__name__: partial(function, op) for function in bound}


def bind(kernels: Any) -> dict[str, Any]:
    """Makes the functions for GPUs launch these kernels from now on, and returns the functions by name."""
    from opforge.ops.triton import registry
    from opforge.ops.triton.transformer.tokens import Tokens

    registry.bind(kernels)
    return functions(Tokens())
