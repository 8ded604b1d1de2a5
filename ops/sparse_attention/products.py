"""Products of matrices of which one is block-sparse: its blocks alone are stored."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .layouts import checked_layout, on_device, split

MODES = ("sdd", "dsd", "dds")
CHUNK = 1 << 20
"""Numbers of the gathered blocks of one step. It bounds the memory that a product needs beside its result."""


class Blocks(NamedTuple):
    """Where the blocks of a layout are, in the order in which they are stored."""

    heads: Tensor
    rows: Tensor
    columns: Tensor
    shape: tuple[int, int, int]
    """Heads, rows of blocks, columns of blocks."""
    block: int

    def transposed(self) -> Blocks:
        """Returns the same blocks in the layout of the transposed matrix. Each block itself is not transposed."""
        heads, rows, columns = self.shape
        return Blocks(self.heads, self.columns, self.rows, (heads, columns, rows), self.block)


def blocks_of(layout: Tensor, block: int, device: torch.device) -> Blocks:
    """Returns where the blocks of a layout [heads, rows, columns] are, on a device."""
    heads, rows, columns = on_device(layout.nonzero(as_tuple=True), device)
    return Blocks(heads, rows, columns, (layout.shape[0], layout.shape[1], layout.shape[2]), block)


class MatMul:
    """A product in which one of the three matrices is block-sparse. Gradients are products of the same kinds.

    Dense matrices are [batch, heads, rows, columns]; leading dimensions of one may be left out. A sparse one is
    [batch, blocks, block, block], its blocks in the order of heads, rows, columns. Sums of float16 and bfloat16 are in
    float32.

    Args:
        layout: Ones and zeros, [heads, rows, columns] in blocks, or [rows, columns] for one head.
        block: Rows and columns of a block.
        mode: Which one is sparse: "sdd" the result, "dsd" the first operand, "dds" the second.
        trans_a: Whether the first operand is used transposed.
        trans_b: Whether the second operand is used transposed.
        bench: Is accepted for compatibility, and changes nothing.
    """

    def __init__(
        self,
        layout: Tensor,
        block: int,
        mode: str,
        trans_a: bool = False,
        trans_b: bool = False,
        bench: bool = False,
    ) -> None:
        if mode not in MODES:
            raise NotImplementedError(f"mode is {mode!r}, expected 'sdd', 'dsd' or 'dds'")
        if block < 1:
            raise ValueError(f"block is {block}, expected 1 or more")
        self.layout = checked_layout(layout)
        self.block, self.mode, self.trans_a, self.trans_b, self.bench = block, mode, trans_a, trans_b, bench
        self.spdims = self.layout.shape
        self._blocks: dict[torch.device, Blocks] = {}

    def blocks(self, device: torch.device) -> Blocks:
        """Returns where the layout's blocks are, on a device."""
        if device not in self._blocks:
            self._blocks[device] = blocks_of(self.layout, self.block, device)
        return self._blocks[device]

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """Returns the product. Raises ValueError for operands that do not fit."""
        if a.device != b.device:
            raise ValueError(f"b is on {b.device}, expected {a.device}, where a is: move it with .to()")
        if torch.is_autocast_enabled(a.device.type):
            dtype = torch.get_autocast_dtype(a.device.type)
            a, b = a.to(dtype), b.to(dtype)
        if a.dtype != b.dtype:
            raise ValueError(f"b is {b.dtype}, expected the dtype of a, {a.dtype}: convert it with .to(a.dtype)")
        if not a.is_floating_point():
            raise ValueError(f"a is {a.dtype}, expected floating-point numbers: convert it with .float()")
        dims = max(a.dim(), b.dim())
        blocks = self.blocks(a.device)
        a, b = self._padded("a", a, self.mode == "dsd"), self._padded("b", b, self.mode == "dds")
        self._check_sizes(a, b)
        out: Tensor = _Product.apply(a, b, self.trans_a, self.trans_b, self.mode, blocks)  # type: ignore[no-untyped-call]
        for _ in range(out.dim() - dims):  # the leading dimensions that the operands lack
            out = out.squeeze(0)
        return out

    def _padded(self, name: str, tensor: Tensor, is_sparse: bool) -> Tensor:
        if tensor.dim() > 4:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected at most 4 dimensions")
        if is_sparse:
            expected = (int((self.layout != 0).sum()), self.block, self.block)
            if tuple(tensor.shape[-3:]) != expected:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}, expected a last part of {expected}: its blocks"
                )
        return tensor.reshape(*[1] * (4 - tensor.dim()), *tensor.shape)

    def _check_sizes(self, a: Tensor, b: Tensor) -> None:
        heads, rows, columns = (self.layout.shape[0], *(self.block * size for size in self.layout.shape[1:]))
        sizes = [
            (heads, rows, columns) if is_sparse else (tensor.shape[1], *tensor.shape[2:])
            for tensor, is_sparse in ((a, self.mode == "dsd"), (b, self.mode == "dds"))
        ]
        (a_heads, *of_a), (b_heads, *of_b) = sizes
        of_a, of_b = of_a[:: -1 if self.trans_a else 1], of_b[:: -1 if self.trans_b else 1]
        if of_a[1] != of_b[0]:
            raise ValueError(f"b has {of_b[0]} rows, expected {of_a[1]}, the columns of a")
        if a_heads != heads or b_heads != heads:
            raise ValueError(f"a and b have {a_heads} and {b_heads} heads, expected {heads}, those of the layout")
        if self.mode == "sdd" and (of_a[0], of_b[1]) != (rows, columns):
            raise ValueError(f"the product is {of_a[0]} x {of_b[1]}, expected {rows} x {columns}, as the layout covers")
        if a.shape[0] != b.shape[0]:
            raise ValueError(f"b has a batch of {b.shape[0]}, expected that of a, {a.shape[0]}")


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, mode: str, blocks: Blocks) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.options = trans_a, trans_b, mode, blocks
        return _product(mode, a, b, trans_a, trans_b, blocks)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        a, b = ctx.saved_tensors
        trans_a, trans_b, mode, blocks = ctx.options
        dc, da, db = gradients[0], None, None
        of_a, of_b = mode[1] + mode[0] + mode[2], mode[2] + mode[1] + mode[0]
        # c = a b: da = dc b^T and db = a^T dc, each transposed if the operand is.
        if ctx.needs_input_grad[0]:
            if trans_a:
                da = _product(mode[1] + mode[2] + mode[0], b, dc, trans_b, True, blocks)
            else:
                da = _product(of_a, dc, b, False, not trans_b, blocks)
        if ctx.needs_input_grad[1]:
            if trans_b:
                db = _product(mode[2] + mode[0] + mode[1], dc, a, True, trans_a, blocks)
            else:
                db = _product(of_b, a, dc, not trans_a, False, blocks)
        return da, db, None, None, None, None


def _product(mode: str, a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, blocks: Blocks) -> Tensor:
    """Returns a product whose sparse matrix has the layout of `blocks` where it is stored, before it is transposed."""
    with torch.autocast(a.device.type, enabled=False):  # it would round the parts, which are summed in float32
        if mode == "sdd":
            return _sparse_result(_turned(a, trans_a), _turned(b, trans_b), blocks)
        if mode == "dsd":
            return _sparse_first(_turned(a, trans_a), _turned(b, trans_b), blocks.transposed() if trans_a else blocks)
        # (a b)^T = b^T a^T
        a, b = _turned(a, not trans_a), _turned(b, not trans_b)
        return _sparse_first(b, a, blocks if trans_b else blocks.transposed()).transpose(2, 3).contiguous()


def _turned(tensor: Tensor, is_transposed: bool) -> Tensor:
    return tensor.transpose(2, 3) if is_transposed else tensor


def _exact(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _sparse_result(a: Tensor, b: Tensor, blocks: Blocks) -> Tensor:
    """Returns the blocks of the product of two dense matrices."""
    (_, rows, columns), size = blocks.shape, blocks.block
    left = split(a, 2, (rows, size))  # [batch, heads, rows, size, inner]
    right = split(b, 3, (columns, size)).movedim(3, 2)  # [batch, heads, columns, inner, size]
    out = a.new_empty((a.shape[0], len(blocks.heads), size, size))
    for at in _steps(blocks, 2 * a.shape[0] * size * max(a.shape[3], 1)):
        heads = blocks.heads[at]
        parts = _exact(left[:, heads, blocks.rows[at]]) @ _exact(right[:, heads, blocks.columns[at]])
        out[:, at] = parts.to(a.dtype)
    return out


def _sparse_first(a: Tensor, b: Tensor, blocks: Blocks) -> Tensor:
    """Returns the product of a sparse and a dense matrix."""
    (heads, rows, columns), size = blocks.shape, blocks.block
    right = split(b, 2, (columns, size))  # [batch, heads, columns, size, width]
    batch, width = b.shape[0], b.shape[3]
    sums = _exact(b.new_zeros(0)).new_zeros((batch, heads * rows, size, width))
    for at in _steps(blocks, 2 * batch * size * max(width, 1)):
        parts = _exact(a[:, at]) @ _exact(right[:, blocks.heads[at], blocks.columns[at]])
        sums.index_add_(1, blocks.heads[at] * rows + blocks.rows[at], parts)
    return sums.view(batch, heads, rows * size, width).to(b.dtype)


def _steps(blocks: Blocks, each: int) -> list[slice]:
    """Returns the blocks of each step, of which one takes `each` numbers."""
    step = max(1, CHUNK // max(each, 1))
    return [slice(begin, begin + step) for begin in range(0, len(blocks.heads), step)]
