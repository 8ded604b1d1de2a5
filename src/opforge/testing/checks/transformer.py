"""Ops for transformers, against float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from opforge.ops.transformer import reference
from opforge.testing.tensors import difference

from .form import OpCheck, draw

EPS = 1e-5


class SpatialInferenceCheck(OpCheck):
    """Biases of channels of two images."""

    function = "channel_bias_add_"
    outputs = ("out",)

    def inputs(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
        images = [draw(*shape, dtype=dtype, seed=seed) for seed in range(2)]
        biases = [draw(shape[-1], dtype=dtype, seed=2 + seed) for seed in range(2)]
        return torch.zeros(shape, dtype=dtype), images[0], biases[0], images[1], biases[1]

    def reference(self, *arguments: Any, **_keywords: Any) -> Any:
        return [reference.channel_bias_add(*arguments[1:])]


class RandomLTDCheck(OpCheck):
    """A gather of half of the tokens."""

    function = "tokens_gather_"
    shapes = ((1, 1, 1), (3, 5, 7), (2, 17, 1025))
    refused_dtypes = ()
    outputs = ("out",)
    rtol = atol = 0.0

    def inputs(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
        batch, tokens, channels = shape
        kept = (tokens + 1) // 2
        random = torch.Generator().manual_seed(1)
        rows = [torch.randperm(tokens, generator=random)[:kept].sort().values for _ in range(batch)]
        out = torch.zeros(batch, kept, channels, dtype=dtype)
        return out, draw(*shape, dtype=dtype), torch.stack(rows).to(torch.int32), True

    def reference(self, *arguments: Any, **_keywords: Any) -> Any:
        return [reference.token_gather(*arguments[1:])]


class InferenceCoreCheck(OpCheck):
    """A norm and the gate of a gated activation; the contract's other tests are about the activation."""

    function = "bias_activation"
    refused_dtypes = (torch.int64, torch.float64)

    def inputs(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
        return draw(*shape, dtype=dtype), draw(shape[-1], dtype=dtype, seed=2), 2

    def reference(self, *arguments: Any, **_keywords: Any) -> Any:
        activation, bias, _type = arguments
        return [functional.silu(activation + bias)]

    def test_a_norm_agrees_with_float64(self) -> None:
        rows, gamma = draw(5, 1025).to(self.device), draw(1025, seed=2).to(self.device)
        out = torch.empty_like(rows)
        self.loaded.rms_norm(out, rows, gamma, EPS)
        self._agrees("rms_norm", out, reference.rms_norm(rows.double(), gamma.double(), EPS))

    def test_a_gated_activation_agrees_with_float64(self) -> None:
        rows, bias = draw(5, 1026).to(self.device), draw(1026, seed=2).to(self.device)
        out = torch.empty(5, 513, device=self.device)
        self.loaded.gated_activation(out, rows, bias, 5)
        exact = reference.gated_activation(rows.double(), bias.double(), functional.silu)
        self._agrees("gated_activation", out, exact)

    def _agrees(self, function: str, out: Tensor, exact: Tensor) -> None:
        problem = difference(out, exact, 1e-5, 1e-5)
        assert not problem, f"{function}: {problem}"

    SHORT = (*OpCheck.SHORT, "test_a_norm_agrees_with_float64", "test_a_gated_activation_agrees_with_float64")
