"""The contract of ops, for the CPU optimizers: lists of tensors that the op changes."""

from __future__ import annotations

import pytest
import torch

from opforge.builders.cpu.adagrad import CPUAdagradBuilder
from opforge.builders.cpu.adam import CPUAdamBuilder
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
