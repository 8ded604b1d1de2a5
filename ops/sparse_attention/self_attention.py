"""Block-sparse self-attention in one pass: scores of blocks are never stored."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from opforge.ops.attention import attention

from .configs import BLOCKS, FixedSparsityConfig, SparsityConfig
from .layouts import BlockLists, block_lists, checked_layout, on_device
from .softmaxes import ADD, MUL, check_masks, check_modes


def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Tensor,
    block: int,
    *,
    rpe: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    key_padding_mask_mode: str = ADD,
    attn_mask_mode: str = MUL,
    lists: BlockLists | None = None,
) -> Tensor:
    """Returns softmax(q k^T / sqrt(size) + masks) v over the blocks of a layout. Gradients repeat bit by bit.

    Args:
        query: [batch, heads, length, size], float32, bfloat16 or float16.
        key: As query; its length may be another one.
        value: As key.
        layout: Ones and zeros, [heads, blocks of queries, blocks of keys].
        block: Queries and keys of a block: 16, 32, 64 or 128.
        rpe: Is added to the scores: [batch or 1, heads or 1, length, keys].
        key_padding_mask: [batch, keys]. With "add" it is added, with "mul" its zeros hide keys.
        attn_mask: [length, keys], in the same way.
        key_padding_mask_mode: "add" or "mul".
        attn_mask_mode: "add" or "mul".
        lists: `block_lists(layout)`, for layouts that are used again.

    Raises ValueError or RuntimeError for shapes, dtypes, devices or blocks that do not fit.
    """
    if block not in BLOCKS:
        raise ValueError(f"block is {block}, expected 16, 32, 64 or 128")
    _check_cover(query, key, value, layout, block)
    scores = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    check_masks(query, scores, rpe, key_padding_mask, attn_mask, key_padding_mask_mode, attn_mask_mode)
    offsets, columns = on_device(block_lists(checked_layout(layout)) if lists is None else lists, query.device)
    biases, multiplied = [], 0
    if rpe is not None:
        biases.append(rpe.reshape(*[1] * (4 - rpe.dim()), *rpe.shape)[:, None])
    for mask, mode, leading in (
        (key_padding_mask, key_padding_mask_mode, (slice(None), None, None, None)),
        (attn_mask, attn_mask_mode, (None, None, None)),
    ):
        if mask is not None:
            multiplied |= (mode == MUL) << len(biases)
            biases.append(mask[leading])
    q, k, v = (tensor.transpose(1, 2).unsqueeze(1) for tensor in (query, key, value))
    out, _ = attention(
        q,
        k,
        v,
        biases,
        offsets=offsets,
        columns=columns,
        block=block,
        multiplied=multiplied,
    )
    return out.squeeze(1).transpose(1, 2)


def _reshaped(name: str, mask: Tensor | None, shape: tuple[int, int], dtype: torch.dtype) -> Tensor | None:
    """Returns a mask without further dimensions of size 1, in a dtype. Raises ValueError unless it fits."""
    if mask is not None and [size for size in mask.shape if size != 1] != [size for size in shape if size != 1]:
        raise ValueError(
            f"{name} has shape {tuple(mask.shape)}, expected {shape}; there may be further dimensions of size 1"
        )
    return None if mask is None else mask.to(dtype).reshape(shape)


def _check_cover(query: Tensor, key: Tensor, value: Tensor, layout: Tensor, block: int) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected [batch, heads, length, size]")
        if tensor.shape[2] % block:
            raise ValueError(f"{name} has {tensor.shape[2]} tokens, expected a multiple of the block, {block}: pad it")
    expected = (query.shape[1], query.shape[2] // block, key.shape[2] // block)
    if tuple(layout.shape) != expected:
        raise ValueError(f"layout has shape {tuple(layout.shape)}, expected {expected}: it must cover the whole length")


class SparseSelfAttention(nn.Module):
    """Self-attention over the blocks that a `SparsityConfig` lists.

    Args:
        sparsity_config: Makes the layout. Its number of heads must be that of the queries.
        key_padding_mask_mode: "add" or "mul": whether a mask of keys is added, or hides keys where it is 0.
        attn_mask_mode: The same for a mask of queries and keys.
        max_seq_length: The longest sequence. A shorter one has the layout's first blocks.
    """

    def __init__(
        self,
        sparsity_config: SparsityConfig | None = None,
        key_padding_mask_mode: str = ADD,
        attn_mask_mode: str = MUL,
        max_seq_length: int = 2048,
    ) -> None:
        super().__init__()
        check_modes(key_padding_mask_mode, attn_mask_mode)
        self.sparsity_config = FixedSparsityConfig(num_heads=4) if sparsity_config is None else sparsity_config
        if not hasattr(self.sparsity_config, "make_layout"):
            raise TypeError(f"sparsity_config is {sparsity_config!r}, expected a SparsityConfig")
        self.register_buffer("master_layout", self.sparsity_config.make_layout(max_seq_length))
        self._need_layout_synchronization = True
        self.key_padding_mask_mode = key_padding_mask_mode
        self.attn_mask_mode = attn_mask_mode
        self._lists: dict[tuple[int, torch.device], tuple[Tensor, BlockLists]] = {}

    master_layout: Tensor

    def get_layout(self, L: int) -> Tensor:
        """Returns the layout for sequences of this length, on the CPU. All ranks get that of rank 0."""
        from torch import distributed as dist

        if self._need_layout_synchronization and dist.is_available() and dist.is_initialized():
            dist.broadcast(self.master_layout, src=0)
            self._need_layout_synchronization = False
        block = self.sparsity_config.block
        if L % block:
            raise ValueError(f"the sequence has {L} tokens, expected a multiple of the block, {block}: pad it")
        blocks = L // block
        if blocks > self.master_layout.shape[-1]:
            longest = self.master_layout.shape[-1] * block
            raise ValueError(f"the sequence has {L} tokens, expected at most {longest}: pass a larger max_seq_length")
        return self.master_layout[..., :blocks, :blocks].cpu()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rpe: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
    ) -> Tensor:
        """Returns the attention's result, [batch, heads, length, size].

        Args:
            query: [batch, heads, length, size], float32, bfloat16 or float16.
            key: As query. [batch, heads, size, length] is transposed back.
            value: As query.
            rpe: Is added to the scores: [batch or 1, heads or 1, length, length].
            key_padding_mask: [batch, length], further dimensions of size 1 allowed.
            attn_mask: [length, length], the same.
        """
        length = query.shape[2]
        if key.shape[2] != length:
            key = key.transpose(2, 3)
        if query.shape != key.shape or key.shape != value.shape:
            raise NotImplementedError(
                f"query, key and value have shapes {tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}, "
                "expected one shape: this is self-attention"
            )
        key_padding_mask = _reshaped("key_padding_mask", key_padding_mask, (query.shape[0], length), query.dtype)
        attn_mask = _reshaped("attn_mask", attn_mask, (length, length), query.dtype)
        layout, lists = self._lists_for(length, query.device)
        return sparse_attention(
            query,
            key,
            value,
            layout,
            self.sparsity_config.block,
            rpe=rpe,
            key_padding_mask=key_padding_mask,
            attn_mask=attn_mask,
            key_padding_mask_mode=self.key_padding_mask_mode,
            attn_mask_mode=self.attn_mask_mode,
            lists=lists,
        )

    def _lists_for(self, length: int, device: torch.device) -> tuple[Tensor, BlockLists]:
        if (length, device) not in self._lists:
            layout = self.get_layout(length)
            self._lists[length, device] = layout, BlockLists(*on_device(block_lists(layout), device))
        return self._lists[length, device]

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        super()._load_from_state_dict(*arguments, **options)
        self._lists.clear()
