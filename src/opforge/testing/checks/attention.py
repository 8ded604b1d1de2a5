"""Attention with biases, against all scores in float64."""

from __future__ import annotations

from typing import Any

import torch

from opforge.ops import reference

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
