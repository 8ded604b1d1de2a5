"""Softmax of the rows of a block-sparse matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .layouts import checked_layout, split
from .products import Blocks, blocks_of

ADD, MUL = "add", "mul"


class Softmax:
    """Softmax of the rows of a block-sparse matrix, in place: elements outside of all blocks count as -inf.

    The matrix is [batch, blocks, block, block], its blocks in the order of heads, rows, columns. Arithmetic is in
    float32. A row whose numbers are all -inf becomes 0.

    Args:
        layout: Ones and zeros, [heads, rows, columns] in blocks, or [rows, columns] for one head.
        block: Rows and columns of a block.
        bench: Is accepted for compatibility, and changes nothing.
    """

    def __init__(self, layout: Tensor, block: int, bench: bool = False) -> None:
        if block < 1:
            raise ValueError(f"block is {block}, expected 1 or more")
        self.layout = checked_layout(layout)
        self.block, self.bench = block, bench
        self.spdims = self.layout.shape
        self.num_blocks = int((self.layout != 0).sum())
        self._blocks: dict[torch.device, Blocks] = {}

    def __call__(
        self,
        x: Tensor,
        scale: float = 1.0,
        rpe: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        key_padding_mask_mode: str = ADD,
        attn_mask_mode: str = ADD,
    ) -> Tensor:
        """Replaces `x` by its softmax, and returns it.

        Args:
            x: The matrix. It is multiplied by `scale` before what follows is added.
            scale: A factor.
            rpe: Is added: the positions' part, [batch or 1, heads or 1, rows, columns] in elements. No gradient.
            key_padding_mask: [batch, columns]. With "add" it is added, with "mul" its zeros become -inf, others 0.
            attn_mask: [rows, columns], in the same way.
            key_padding_mask_mode: "add" or "mul".
            attn_mask_mode: "add" or "mul".

        Raises ValueError for tensors that do not fit.
        """
        if not x.is_floating_point():
            raise ValueError(f"x is {x.dtype}, expected floating-point numbers: convert it with .float()")
        expected = (self.num_blocks, self.block, self.block)
        if x.dim() not in (3, 4) or tuple(x.shape[-3:]) != expected:
            raise ValueError(f"x has shape {tuple(x.shape)}, expected a last part of {expected}: its blocks")
        heads, rows, columns = self.layout.shape
        scores = (len(x) if x.dim() == 4 else 1, heads, self.block * rows, self.block * columns)
        check_masks(x, scores, rpe, key_padding_mask, attn_mask, key_padding_mask_mode, attn_mask_mode)
        blocks = self._places(x.device)
        additions = [(rpe, False), (key_padding_mask, key_padding_mask_mode == MUL), (attn_mask, attn_mask_mode == MUL)]
        out: Tensor = _RowSoftmax.apply(x, scale, *additions, blocks)  # type: ignore[no-untyped-call]
        return out

    def _places(self, device: torch.device) -> Blocks:
        if device not in self._blocks:
            self._blocks[device] = blocks_of(self.layout, self.block, device)
        return self._blocks[device]


def check_modes(key_padding_mask_mode: str, attn_mask_mode: str) -> None:
    """Raises ValueError for an unknown mode of a mask."""
    for name, mode in (("key_padding_mask_mode", key_padding_mask_mode), ("attn_mask_mode", attn_mask_mode)):
        if mode not in (ADD, MUL):
            raise ValueError(f"{name} is {mode!r}, expected 'add' or 'mul'")


def check_masks(
    like: Tensor,
    scores: tuple[int, int, int, int],
    rpe: Tensor | None,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    key_padding_mask_mode: str,
    attn_mask_mode: str,
) -> None:
    """Raises ValueError for unknown modes, and for masks that do not fit.

    Args:
        like: Has the dtype and device that masks must have.
        scores: The scores' batch, heads, queries and keys.
        rpe: [batch or 1, heads or 1, queries, keys]; leading dimensions may be left out.
        key_padding_mask: [batch or 1, keys].
        attn_mask: [queries, keys].
        key_padding_mask_mode: "add" or "mul".
        attn_mask_mode: "add" or "mul".
    """
    check_modes(key_padding_mask_mode, attn_mask_mode)
    batch, heads, queries, keys = scores
    of_positions = (batch, heads, queries, keys)[-rpe.dim() :] if rpe is not None and 2 <= rpe.dim() <= 4 else scores
    for name, tensor, shape, exact in (
        ("rpe", rpe, of_positions, 2),
        ("key_padding_mask", key_padding_mask, (batch, keys), 1),
        ("attn_mask", attn_mask, (queries, keys), 2),
    ):
        if tensor is None:
            continue
        if tensor.dtype != like.dtype:
            raise ValueError(f"{name} is {tensor.dtype}, expected {like.dtype}: convert it with .to()")
        if tensor.device != like.device:
            raise ValueError(f"{name} is on {tensor.device}, expected {like.device}: move it with .to()")
        fits = tensor.dim() == len(shape) and tensor.shape[-exact:] == shape[-exact:]
        if not fits or any(has not in (1, size) for has, size in zip(tensor.shape, shape, strict=True)):
            leading = "; sizes before them may be 1" if len(shape) > exact else ""
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}, expected {shape}: the last {exact} as the scores{leading}"
            )


class _RowSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float, rpe: Any, keys: Any, mask: Any, blocks: Blocks) -> Tensor:
        scores = (x.double() if x.dtype == torch.float64 else x.float()).view(-1, *x.shape[-3:]) * scale
        size = blocks.block
        for (tensor, is_mask), gather in ((rpe, _of_positions), (keys, _of_keys), (mask, _of_pairs)):
            if tensor is not None:
                part = gather(tensor, blocks, size)
                scores += torch.zeros_like(part).masked_fill_(part == 0, -torch.inf) if is_mask else part
        sums, powers = _row_sums(scores, blocks)
        weights = powers / sums.masked_fill(sums == 0, 1.0)[:, _row_numbers(blocks), :, None]
        x.copy_(weights.view(x.shape))
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        ctx.options = scale, blocks
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        scale, blocks = ctx.options
        dtype = torch.float64 if y.dtype == torch.float64 else torch.float32
        weights, dy = (tensor.to(dtype).view(-1, *y.shape[-3:]) for tensor in (y, gradients[0].contiguous()))
        products = weights * dy
        numbers = _row_numbers(blocks)
        sums = _zeros(products, blocks).index_add_(1, numbers, products.sum(-1))
        dx = (products - weights * sums[:, numbers, :, None]) * scale
        return dx.view(y.shape).to(y.dtype), None, None, None, None, None


def _row_numbers(blocks: Blocks) -> Tensor:
    return blocks.heads * blocks.shape[1] + blocks.rows


def _zeros(like: Tensor, blocks: Blocks) -> Tensor:
    return like.new_zeros((like.shape[0], blocks.shape[0] * blocks.shape[1], blocks.block))


def _row_sums(scores: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
    """Returns the sums of powers of each row, [batch, heads * rows, block], and the powers, in the scores' place."""
    numbers = _row_numbers(blocks)
    largest = _zeros(scores, blocks).fill_(-torch.inf)
    of_blocks = scores.amax(-1)
    largest.scatter_reduce_(1, numbers[None, :, None].expand_as(of_blocks), of_blocks, "amax")
    largest.masked_fill_(largest == -torch.inf, 0.0)
    scores.sub_(largest[:, numbers, :, None]).exp_()
    return _zeros(scores, blocks).index_add_(1, numbers, scores.sum(-1)), scores


def _of_positions(rpe: Tensor, blocks: Blocks, size: int) -> Tensor:
    rpe = rpe.reshape(*[1] * (4 - rpe.dim()), *rpe.shape)
    rpe = rpe.expand(-1, blocks.shape[0], -1, -1)
    tiles = split(split(rpe, 3, (-1, size)), 2, (-1, size)).transpose(3, 4)
    return tiles[:, blocks.heads, blocks.rows, blocks.columns]


def _of_keys(mask: Tensor, blocks: Blocks, size: int) -> Tensor:
    return split(mask, 1, (-1, size))[:, blocks.columns, None]


def _of_pairs(mask: Tensor, blocks: Blocks, size: int) -> Tensor:
    return split(split(mask, 1, (-1, size)), 0, (-1, size)).transpose(1, 2)[blocks.rows, blocks.columns][None]
