"""The CPU optimizers' ops beyond their contract: lower levels of the CPU, mixed dtypes, layouts, lists."""

import itertools
import math

import pytest
import torch
from support import cases
from support.cpu_ops import ADAM, LOW, assert_rounds_to, inputs, run_adam

from opforge.builders.cpu.adagrad import CPUAdagradBuilder
from opforge.builders.cpu.adam import CPUAdamBuilder
from opforge.builders.cpu.lion import CPULionBuilder
from opforge.ops import reference

pytestmark = pytest.mark.compile

COMBINATIONS = list(itertools.product((torch.float32, *LOW), (torch.float32, *LOW), (torch.float32, torch.bfloat16)))
MIXED = [types for types in COMBINATIONS if types[0] != types[1] or types[2] != torch.float32]
"""Of parameters, gradients and states. The contract has parameters and gradients of one dtype, and float32 states."""
LION = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}
ADAGRAD = {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.1}


def test_adams_cases_hold_on_each_level(cpu_adam):
    """The contract tries them on this CPU's own level alone."""
    cases.check_results(CPUAdamBuilder, cpu_adam)


def test_the_cases_of_adagrad_and_lion_hold_on_each_level(cpu_adagrad, cpu_lion):
    for builder, op in ((CPUAdagradBuilder, cpu_adagrad), (CPULionBuilder, cpu_lion)):
        cases.check_results(builder, op)


@pytest.mark.parametrize(("params", "grads", "states"), MIXED)
def test_adam_of_mixed_dtypes(cpu_adam, params, grads, states):
    tensors = inputs(4097, params, grads, states)
    expected = reference.adam(*(t.double() for t in tensors), **ADAM)
    start = tensors[0].double()
    run_adam(cpu_adam, tensors)
    assert_rounds_to(tensors[0], expected[0], scale=start.abs() + (expected[0] - start).abs())
    # The average and the gradient may cancel, so the error is compared with the size of the terms.
    assert_rounds_to(tensors[2], expected[1], scale=torch.full_like(start, 1.0))
    assert_rounds_to(tensors[3], expected[2])


@pytest.mark.parametrize(("params", "grads", "states"), MIXED)
def test_adagrad_of_mixed_dtypes(cpu_adagrad, params, grads, states):
    param, grad, _, total = inputs(4097, params, grads, states)
    start = param.double()
    expected = reference.adagrad(start, grad.double(), total.double(), **ADAGRAD)
    cpu_adagrad.multi_adagrad_([param], [grad], [total], maximize=False, **ADAGRAD)
    assert_rounds_to(param, expected[0], scale=start.abs() + (expected[0] - start).abs())
    assert_rounds_to(total, expected[1], scale=total.double() + (grad.double().abs() + 0.1 * start.abs()) ** 2)


@pytest.mark.parametrize(("params", "grads", "states"), MIXED)
def test_lion_of_mixed_dtypes(cpu_lion, params, grads, states):
    param, grad, average, _ = inputs(4097, params, grads, states)
    start = param.double()
    direction = 0.9 * average.double() + 0.1 * grad.double()
    expected = reference.lion(start, grad.double(), average.double(), **LION)
    cpu_lion.multi_lion_([param], [grad], [average], maximize=False, **LION)
    clear = direction.abs() > 1e-6  # nearer to zero, the sign depends on rounding
    assert_rounds_to(param[clear], expected[0][clear], scale=start[clear])
    assert_rounds_to(average, expected[1], scale=torch.full_like(start, 1.0))


@pytest.mark.parametrize("shape", [(), (3, 0), (15,), (16,), (17,), (63,), (65,)])
def test_every_shape_is_updated_to_its_last_element_and_not_beyond(cpu_adam, shape):
    tensors = inputs(shape)
    size = tensors[0].numel()
    # NaN on both sides, at unaligned addresses, shows writes outside, and reads outside that have an effect.
    buffers = [torch.full((size + 67,), math.nan) for _ in tensors]
    views = [buffer[3 : 3 + size].view(shape).copy_(tensor) for buffer, tensor in zip(buffers, tensors, strict=True)]
    expected = reference.adam(*(t.double() for t in tensors), **ADAM)
    run_adam(cpu_adam, views)
    start = tensors[0].double()
    assert_rounds_to(views[0], expected[0], scale=start.abs() + (expected[0] - start).abs() + 0.1)
    assert_rounds_to(views[3], expected[2])
    for buffer in buffers:
        assert bool(buffer[:3].isnan().all()) and bool(buffer[3 + size :].isnan().all())


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("size", [1, 7, 17, 31, 1025])
def test_the_tail_of_a_low_precision_tensor_stays_inside(cpu_adam, dtype, size):
    tensors = inputs(size, dtype, dtype, torch.bfloat16)
    buffers = [torch.full((size + 40,), math.nan, dtype=tensor.dtype) for tensor in tensors]
    views = [buffer[1 : 1 + size].copy_(tensor) for buffer, tensor in zip(buffers, tensors, strict=True)]
    run_adam(cpu_adam, views)
    run_adam(cpu_adam, tensors)
    for view, tensor, buffer in zip(views, tensors, buffers, strict=True):
        assert torch.equal(view, tensor)
        assert bool(buffer[0].isnan()) and bool(buffer[1 + size :].isnan().all())


@pytest.mark.parametrize(("params", "grads", "states"), COMBINATIONS)
def test_an_elements_result_does_not_depend_on_its_position(cpu_adam, params, grads, states):
    """Whole vectors in place, those converted by blocks, and the rest behind them are computed in the same way."""
    whole = inputs(1100, params, grads, states)
    pieces = [tensor.clone() for tensor in whole]
    run_adam(cpu_adam, whole)
    for begin, end in itertools.pairwise((0, 3, 20, 531, 1044, 1100)):
        run_adam(cpu_adam, [tensor[begin:end] for tensor in pieces])
    assert all(torch.equal(a, b) for a, b in zip(whole, pieces, strict=True))


@pytest.mark.parametrize(
    "lay_out",
    [
        lambda t: t.to(memory_format=torch.channels_last),
        lambda t: t.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
    ],
)
def test_any_dense_order_of_dimensions_is_accepted(cpu_adam, lay_out):
    plain = inputs((4, 3, 5, 7))
    ordered = [lay_out(tensor.clone()) for tensor in plain]
    run_adam(cpu_adam, plain)
    run_adam(cpu_adam, ordered)
    for a, b in zip(plain, ordered, strict=True):
        assert torch.equal(a, b)


def test_results_do_not_depend_on_threads_lists_or_neighbours(cpu_adam):
    shapes = [(5,), (70_001,), (), (1000,), (33, 1001), (0,)]
    together = [inputs(shape, seed=i) for i, shape in enumerate(shapes)]
    alone = [[tensor.clone() for tensor in tensors] for tensors in together]
    serial = [[tensor.clone() for tensor in tensors] for tensors in together]
    modes = {"adamw_mode": True, "bias_correction": True, "maximize": False}
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        cpu_adam.multi_adam_(*([tensors[i] for tensors in together] for i in range(4)), **ADAM, **modes)
        torch.set_num_threads(1)
        cpu_adam.multi_adam_(*([tensors[i] for tensors in serial] for i in range(4)), **ADAM, **modes)
    finally:
        torch.set_num_threads(threads)
    cpu_adam.create_adam(901, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, False)
    for tensors in alone:
        numbers = [ADAM[name] for name in ("step", "lr", "beta1", "beta2", "eps", "weight_decay")]
        cpu_adam.adam_update(901, *numbers, True, *tensors)
    cpu_adam.destroy_adam(901)
    for a, b, c in zip(together, serial, alone, strict=True):
        for x, y, z in zip(a, b, c, strict=True):
            assert torch.equal(x, y) and torch.equal(x, z)
