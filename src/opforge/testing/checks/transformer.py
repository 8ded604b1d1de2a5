"""Ops for transformers, against float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from opforge.ops.transformer import reference
from opforge.testing.tensors import difference

from .form import Check, OpCheck, draw

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


class InferenceCheck(Check):
    """Functions under DeepSpeed's names: an activation with a bias, and the tokens of experts."""

    def test_an_activation_agrees_with_float64(self) -> None:
        rows, bias = draw(5, 1025).to(self.device), draw(1025, seed=2).to(self.device)
        exact = functional.relu(rows.double() + bias.double())
        problem = difference(self.loaded.bias_relu_fp32(rows, bias), exact, 1e-5, 1e-5)
        assert not problem, f"bias_relu_fp32: {problem}"

    def test_the_tokens_of_experts_agree_with_float64(self) -> None:
        chosen, tokens = draw(7, 3, 2).to(self.device), draw(7, 33, seed=2).to(self.device)
        exact = torch.einsum("sec,sm->ecm", chosen.double(), tokens.double())
        problem = difference(self.loaded.einsum_sec_sm_ecm_fp32(chosen, tokens), exact, 1e-5, 1e-5)
        assert not problem, f"einsum_sec_sm_ecm_fp32: {problem}"


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


class TransformerCheck(Check):
    """The layer both ways, with norms before and after its halves: its results and its gradients."""

    HEADS, WIDTH, INNER = 2, 16, 24

    def test_results_and_gradients_agree_with_float64(self) -> None:
        for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 5e-2)):
            for number, norms_first in enumerate((True, False)):
                self._both_ways(number, norms_first, dtype, tolerance)

    def _both_ways(self, number: int, norms_first: bool, dtype: torch.dtype, tolerance: float) -> None:
        width, inner = self.WIDTH, self.INNER
        form = (number, 2, width, self.HEADS, inner, 0.0, 0.0, EPS, 0, norms_first, False)
        self.loaded.create_transformer_layer_fp32(*form, False, False, False, False)
        rows, gradient = (draw(2, 5, width, dtype=dtype, seed=seed) for seed in range(2))
        mask = torch.zeros(2, 1, 1, 5, dtype=dtype)
        mask[1, ..., 3:] = -10.0
        weights = self._weights(dtype)
        modes = (norms_first, False, False, False)
        saved = self.loaded.forward_fp32(number, rows, mask, *weights, True, *modes)
        gradients = self.loaded.backward_fp32(number, gradient, *saved, rows, mask, *weights)

        leaves = [tensor.double().requires_grad_() for tensor in (rows, *weights)]
        exact = reference.transformer_layer(leaves[0], mask.double(), leaves[1:], self.HEADS, EPS, norms_first)
        expected = [exact.detach(), *torch.autograd.grad(exact, leaves, gradient.double())]
        for place, (result, value) in enumerate(zip((saved[0], *gradients), expected, strict=True)):
            # A gradient is a sum over all tokens: its error is in proportion to its largest value.
            problem = difference(result, value, tolerance, tolerance * max(1.0, float(value.abs().max())))
            what = "a gradient" if place else "the output"
            assert not problem, f"{dtype}, pre_layer_norm={norms_first}, {what}: {problem}"

    def _weights(self, dtype: torch.dtype) -> list[Tensor]:
        """Returns the twelve parameters, those of norms near 1."""
        width, inner = self.WIDTH, self.INNER
        vectors = ((width,),) * 3
        sizes = ((3 * width, width), (3 * width,), (width, width), *vectors, (inner, width), (inner,), (width, inner))
        drawn = [0.3 * draw(*size, seed=2 + place) for place, size in enumerate((*sizes, *vectors))]
        return [(1 + tensor / 3 if place in (4, 10) else tensor).to(dtype) for place, tensor in enumerate(drawn)]
