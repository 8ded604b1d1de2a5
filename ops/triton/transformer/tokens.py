"""Random layerwise token dropping on a GPU: the kernels under the functions of opforge.ops.random_ltd."""

from __future__ import annotations

import torch
from torch import Tensor

from opforge.builders.triton import transformer as builders
from opforge.ops.triton import registry

OP = builders.RandomLTDBuilder.name
MASKS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of an element of a mask -> the integer that it is moved as."""


class Tokens:
    """The kernels by the names and schemas of the host's op."""

    @staticmethod
    def tokens_sort_(unsorted_token_ids: Tensor, original_tokens: int) -> None:
        """Sorts each row in place, by torch: they are a few thousand numbers."""
        _check_numbers("unsorted_token_ids", unsorted_token_ids, unsorted_token_ids)
        unsorted_token_ids.copy_(unsorted_token_ids.sort(-1).values)

    @staticmethod
    def tokens_gather_(out: Tensor, activations: Tensor, sorted_indices: Tensor, batch_first: bool) -> None:
        """Writes the retained tokens to `out`. Those with a number out of range have all bits set."""
        _move("gather", activations, out, sorted_indices, batch_first)

    @staticmethod
    def tokens_scatter_(
        all_activations: Tensor, layer_activations: Tensor, sorted_indices: Tensor, batch_first: bool
    ) -> None:
        """Writes the retained tokens to their places. Those with a number out of range are left out."""
        _move("scatter", all_activations, layer_activations, sorted_indices, batch_first)

    @staticmethod
    def mask_gather_(out: Tensor, dense_mask: Tensor, sorted_indices: Tensor) -> None:
        """Writes the retained rows and columns of a mask."""
        _check_numbers("sorted_indices", sorted_indices, dense_mask)
        batch, retained = sorted_indices.shape[1:]
        tokens = dense_mask.shape[-1]
        if dense_mask.shape != (batch, 1, tokens, tokens):
            expected = f"({batch}, 1, tokens, tokens): the batch of sorted_indices"
            raise ValueError(f"{OP}: dense_mask has shape {tuple(dense_mask.shape)}, expected {expected}")
        if dense_mask.element_size() not in MASKS:
            raise TypeError(f"{OP}: dense_mask is {dense_mask.dtype}, expected elements of at most 8 bytes")
        width = 8 * dense_mask.element_size()
        bits = [tensor.view(MASKS[dense_mask.element_size()]) for tensor in (dense_mask, out)]
        if out.numel():
            grid = (sorted_indices.numel(), -(-retained // builders.BLOCK), 1)
            registry.kernels_of(builders.RandomLTDBuilder).launch(
                f"mask_{width}", grid, *bits, sorted_indices, tokens, retained, batch
            )


def _check_numbers(name: str, numbers: Tensor, like: Tensor) -> None:
    if numbers.dtype != torch.int32 or numbers.device != like.device:
        expected = f"torch.int32 on {like.device}: convert it with .to(torch.int32)"
        raise TypeError(f"{OP}: {name} is {numbers.dtype} on {numbers.device}, expected {expected}")


def _move(name: str, whole: Tensor, part: Tensor, numbers: Tensor, batch_first: bool) -> None:
    _check_numbers("sorted_indices", numbers, whole)
    batch, token = (0, 1) if batch_first else (1, 0)
    fits = whole.dim() == part.dim() == 3 and numbers.dim() == 2 and numbers.shape[0] == whole.shape[batch]
    if fits:
        expected = list(whole.shape)
        expected[token] = numbers.shape[1]
        fits = list(part.shape) == expected
    if not fits:
        shapes = f"{tuple(whole.shape)}, {tuple(part.shape)} and {tuple(numbers.shape)}"
        raise ValueError(
            f"{OP}: all tokens, the retained ones and sorted_indices have shapes {shapes}, expected one batch and one "
            "number of channels, and a number for each retained token"
        )
    if part.dtype != whole.dtype or part.device != whole.device:
        raise TypeError(f"{OP}: the retained tokens are {part.dtype} on {part.device}, expected {whole.dtype}")
    if not whole.is_contiguous() or not part.is_contiguous():
        raise ValueError(f"{OP}: the activations have strides {whole.stride()}, expected contiguous ones")
    if not part.numel():
        return
    size = whole.shape[2] * whole.element_size()
    aligned = size % 64 == 0 and whole.data_ptr() % 16 == 0 and part.data_ptr() % 16 == 0
    form, kind = ("aligned", torch.int32) if aligned else ("any", torch.int8)
    bits = [tensor.view(kind) for tensor in (whole, part)]
    strides = [stride for tensor in bits for stride in (tensor.stride(batch), tensor.stride(token))]
    columns = bits[0].shape[2]
    grid = (numbers.numel(), -(-columns // builders.BLOCK), 1)
    sizes = (whole.shape[token], numbers.shape[1], columns)
    registry.kernels_of(builders.RandomLTDBuilder).launch(f"{name}_{form}", grid, *bits, numbers, *sizes, *strides)
