"""Attention with biases, and over listed blocks, against all scores in float64."""

from __future__ import annotations

from typing import Any

import torch

from opforge.ops import reference
from opforge.ops.sparse_attention.layouts import block_lists

from .form import OpCheck, draw


class EvoformerCheck(OpCheck):
    """Evoformer's attention: a bias for keys and one for pairs."""

    function = "evoformer_attention_"
    shapes = ((2, 1, 5, 1, 16), (1, 2, 70, 2, 20))
    refused_dtypes = (torch.float64,)
    outputs = ("out", "log_sums")
    rtol = atol = 1e-2

    def inputs(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
        outer, inner, length, heads, _size = shape
        q, k, v = (draw(*shape, dtype=dtype, seed=seed) for seed in range(3))
        sizes = ((outer, inner, 1, 1, length), (outer, 1, heads, length, length))
        biases = [draw(*size, dtype=dtype, seed=3 + number) for number, size in enumerate(sizes)]
        return torch.empty_like(q), torch.empty(outer, inner, heads, length), q, k, v, biases, 0, 0.25

    def reference(self, *arguments: Any, **_keywords: Any) -> Any:
        _out, _log_sums, q, k, v, biases, _multiplied, scale = arguments
        return reference.attention(q, k, v, biases, scale=scale)


class SparseCheck(OpCheck):
    """Block-sparse attention: each block of queries sees itself and a few others, the last of them one."""

    function = "sparse_attention_"
    shapes = ((1, 1, 16, 1, 16), (1, 2, 80, 2, 20))
    refused_dtypes = (torch.float64,)
    outputs = ("out", "log_sums")
    rtol = atol = 1e-2
    BLOCK = 16

    def inputs(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
        outer, inner, length, heads, _size = shape
        q, k, v = (draw(*shape, dtype=dtype, seed=seed) for seed in range(3))
        lists = block_lists(self._layout(heads, length))
        out, log_sums = torch.empty_like(q), torch.empty(outer, inner, heads, length)
        return out, log_sums, q, k, v, [], 0, lists.offsets, lists.columns, self.BLOCK, 0.25

    def reference(self, *arguments: Any, **_keywords: Any) -> Any:
        _out, _log_sums, q, k, v, *_rest, scale = arguments
        layout = self._layout(q.shape[3], q.shape[2])
        seen = layout.repeat_interleave(self.BLOCK, 1).repeat_interleave(self.BLOCK, 2)
        return reference.attention(q, k, v, scale=scale, hidden=(seen == 0).to(q.device))

    def _layout(self, heads: int, length: int) -> torch.Tensor:
        """Returns a layout of ones and zeros, which differs between heads."""
        blocks = length // self.BLOCK
        drawn = torch.rand(heads, blocks, blocks, generator=torch.Generator().manual_seed(4)) < 0.4
        drawn |= torch.eye(blocks, dtype=torch.bool)
        drawn[:, -1] = torch.eye(blocks, dtype=torch.bool)[-1]
        return drawn.long()
