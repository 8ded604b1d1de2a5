"""The contract of ops, for the CPU optimizers, whose lists of tensors the op changes, and for attention."""

from __future__ import annotations

import pytest
import torch

from opforge.builders.cpu.adagrad import CPUAdagradBuilder
from opforge.builders.cpu.adam import CPUAdamBuilder
from opforge.builders.cpu.evoformer_attn import EvoformerAttnBuilder
from opforge.builders.cpu.lion import CPULionBuilder
from opforge.ops import reference
from opforge.testing import OpContract

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("builds_are_shared")]
RATE = {"lr": 1e-2, "weight_decay": 0.1}
ADAM = {**RATE, "step": 3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}


class OptimizerContract(OpContract):
    """Lists of two parameters, their gradients and states."""

    strided = False  # parameters without gaps only
    rtol = atol = 2e-6
    states = 2

    def inputs(self, shape, dtype):
        random = torch.Generator().manual_seed(1)
        values = [[torch.randn(shape, generator=random).to(dtype) for _ in range(2)] for _ in range(2 + self.states)]
        values[-1] = [tensor.square() + 1e-3 for tensor in values[-1]]
        return tuple(values)

    def reference(self, *lists, **keywords):
        # The rule returns the parameter and the states, which the schema marks; the gradients are left alone.
        updated = [type(self).rule(*tensors, **keywords) for tensors in zip(*lists, strict=True)]
        return [[values[index] for values in updated] for index in range(len(lists) - 1)]


class TestAdam(OptimizerContract):
    rule = reference.adam
    keywords = {**ADAM, "adamw_mode": True, "bias_correction": True, "maximize": False}

    def make_op(self):
        return CPUAdamBuilder().load().multi_adam_


class TestAdagrad(OptimizerContract):
    rule = reference.adagrad
    keywords = {**RATE, "eps": 1e-10, "maximize": False}
    states = 1

    def make_op(self):
        return CPUAdagradBuilder().load().multi_adagrad_


class TestLion(OptimizerContract):
    rule = reference.lion
    keywords = {**RATE, "beta1": 0.9, "beta2": 0.99, "maximize": False}
    states = 1
    special_values = False  # the direction's sign, where it is not a number, has no one answer

    def make_op(self):
        return CPULionBuilder().load().multi_lion_


class TestAttention(OpContract):
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    refused_dtypes = (torch.float64,)
    shapes = ((1, 2, 0, 2, 8), (2, 1, 5, 1, 16), (1, 2, 70, 2, 20), (1, 1, 33, 3, 40))
    outputs = ("out", "log_sums")
    strided = False
    special_values = False  # NaN and infinities spread over the rows that see them, as tests of the values show
    rtol = atol = 1e-2

    def make_op(self):
        return EvoformerAttnBuilder().load().evoformer_attention_

    def inputs(self, shape, dtype):
        outer, inner, length, heads, _ = shape
        random = torch.Generator().manual_seed(1)
        q, k, v = (torch.randn(shape, generator=random).to(dtype) for _ in range(3))
        biases = [
            torch.randn(size, generator=random).to(dtype)
            for size in ((outer, inner, 1, 1, length), (outer, 1, heads, length, length))
        ]
        log_sums = torch.empty(outer, inner, heads, length)
        return torch.empty_like(q), log_sums, q, k, v, biases, 0, 0.25

    def reference(self, _out, _log_sums, q, k, v, biases, _multiplied, scale):
        return reference.attention(q, k, v, biases, scale=scale)
