"""Steps of the optimizers, against the rules in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from opforge.ops import reference
from opforge.testing.tensors import difference

from .form import Check, OpCheck, draw

RATE = {"lr": 1e-2, "weight_decay": 0.1}
ADAM = {**RATE, "step": 3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
LION = {**RATE, "beta1": 0.9, "beta2": 0.99}


class StepCheck(OpCheck):
    """Lists of two parameters, their gradients and states."""

    shapes = ((0,), (7,), (3, 1025))
    rtol = atol = 2e-6
    states: ClassVar[int] = 2

    def _tolerances(self, dtype: torch.dtype) -> tuple[float, float]:
        epsilon = 4 * torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
        return max(2e-6, epsilon), max(2e-6, epsilon)

    def inputs(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
        seeds = [(2 * number, 2 * number + 1) for number in range(2 + self.states)]
        lists = [[draw(*shape, dtype=dtype, seed=seed) for seed in pair] for pair in seeds]
        lists[-1] = [tensor.square() + 1e-3 for tensor in lists[-1]]
        return tuple(lists)

    def rule(self, *tensors: Tensor, **keywords: Any) -> tuple[Any, ...]:
        """Returns the parameter and the states after a step of one parameter."""
        raise NotImplementedError(f"{type(self).__name__} must override rule")

    def reference(self, *lists: Any, **keywords: Any) -> Any:
        updated = [self.rule(*tensors, **keywords) for tensors in zip(*lists, strict=True)]
        # The parameter and the states, which the schema marks; the gradients are left alone.
        return [[values[index] for values in updated] for index in range(len(lists) - 1)]


class AdamCheck(StepCheck):
    """CPUAdam."""

    function = "multi_adam_"
    keywords: Mapping[str, Any] = {**ADAM, "adamw_mode": True, "bias_correction": True, "maximize": False}

    def rule(self, *tensors: Tensor, **keywords: Any) -> tuple[Any, ...]:
        return reference.adam(*tensors, **keywords)


class AdagradCheck(StepCheck):
    """CPUAdagrad."""

    function = "multi_adagrad_"
    keywords: Mapping[str, Any] = {**RATE, "eps": 1e-10, "maximize": False}
    states = 1

    def rule(self, *tensors: Tensor, **keywords: Any) -> tuple[Any, ...]:
        return reference.adagrad(*tensors, **keywords)


class LionCheck(StepCheck):
    """CPULion."""

    function = "multi_lion_"
    keywords: Mapping[str, Any] = {**LION, "maximize": False}
    states = 1

    def rule(self, *tensors: Tensor, **keywords: Any) -> tuple[Any, ...]:
        return reference.lion(*tensors, **keywords)


class FusedCheck(StepCheck):
    """A fused optimizer's op: a noop flag comes before the lists, and a list of copies after them."""

    dtypes = (torch.float32,)
    refused_dtypes = ()

    def inputs(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
        return torch.zeros(1, dtype=torch.int32), *super().inputs(shape, dtype), []

    def reference(self, noop: Tensor, *lists: Any, **keywords: Any) -> Any:
        return super().reference(*lists[:-1], **keywords)


class FusedAdamCheck(FusedCheck):
    """FusedAdam."""

    function = "fused_adam_"
    keywords: Mapping[str, Any] = AdamCheck.keywords

    def rule(self, *tensors: Tensor, **keywords: Any) -> tuple[Any, ...]:
        return reference.adam(*tensors, **keywords)


class FusedLionCheck(FusedCheck):
    """FusedLion."""

    function = "fused_lion_"
    keywords: Mapping[str, Any] = LION
    states = 1

    def rule(self, *tensors: Tensor, **keywords: Any) -> tuple[Any, ...]:
        return reference.lion(*tensors, **keywords)


class FusedLambCheck(Check):
    """FusedLamb. It also returns the ratios of norms."""

    def test_a_step_agrees_with_float64(self) -> None:
        for dtype in (torch.float32, torch.bfloat16):
            for shape in ((7,), (3, 1025)):
                self._step(shape, dtype)

    def _step(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        lamb: dict[str, Any] = {**ADAM, "max_coeff": 10.0, "min_coeff": 0.01}
        param, grad, first = (draw(*shape, dtype=dtype, seed=seed).to(self.device) for seed in range(3))
        second = draw(*shape, seed=3).square().add(1e-3).to(dtype).to(self.device)
        exact = [tensor.double() for tensor in (param, grad, first, second)]
        *expected, ratio = reference.lamb(exact[0], exact[1], exact[2], exact[3], **lamb)
        noop, ratios = torch.zeros(1, dtype=torch.int32, device=self.device), torch.ones(1, device=self.device)
        lists = [[param], [grad], [first], [second], []]
        modes = {"eps_inside_sqrt": False, "bias_correction": True, "scale": 1.0}
        self.loaded.fused_lamb_(noop, *lists, ratios=ratios, **lamb, **modes)
        tolerance = max(1e-5, 4 * torch.finfo(dtype).eps)
        expected.append(torch.tensor([ratio], dtype=torch.float64, device=self.device))
        for result, value in zip((param, first, second, ratios), expected, strict=True):
            problem = difference(result, value, tolerance, tolerance)
            assert not problem, f"for shape {shape} and {dtype}: {problem}"
