"""The fused optimizers' ops against float64 references: dtypes, shapes, lists, copies, flags, numbers on the device.

Each test runs the host's kernels, the GPU's own source run on the host, and the Triton kernels interpreted.
"""

import itertools
import math

import pytest
import torch
from support import cases, tiers
from support.fused_ops import (
    ADAM,
    DTYPES,
    LAMB,
    LION,
    LOW,
    assert_rounds_to,
    exact,
    inputs,
    run_adam,
    run_lamb,
    run_lion,
)

from opforge.builders.cpu.fused_adam import FusedAdamBuilder
from opforge.builders.cpu.fused_lamb import FusedLambBuilder
from opforge.builders.cpu.fused_lion import FusedLionBuilder
from opforge.builders.triton.optimizers import TritonAdamBuilder, TritonLambBuilder, TritonLionBuilder
from opforge.ops import reference

# numpy, which interprets Triton, warns about what a GPU does silently: x / 0, an overflow to infinity.
pytestmark = [pytest.mark.compile, pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")]


HOST = (FusedAdamBuilder, FusedLionBuilder, FusedLambBuilder)
TRITON = (TritonAdamBuilder, TritonLionBuilder, TritonLambBuilder)
MIXED = [
    dtypes
    for dtypes in itertools.product(DTYPES, DTYPES, DTYPES)
    # The cases have parameters and gradients of one dtype, and states in float32. Each other pair is tried.
    if dtypes[:2] != (dtypes[0], dtypes[0]) or dtypes[2] != torch.float32
    if tiers.is_long() or sum(map(DTYPES.index, dtypes)) % 3 == 1
]


@pytest.mark.parametrize("fused_ops", ["gpu", "triton"], indirect=True)
def test_the_cases_hold_for_the_gpus_source_and_triton_too(fused_ops):
    """The contract tries them with the host's kernels alone."""
    interpreted = is_interpreted(fused_ops[0])
    for builder, op in zip(TRITON if interpreted else HOST, fused_ops, strict=True):
        cases.check_results(builder, op, short=interpreted)


@pytest.mark.parametrize(("params", "grads", "states"), MIXED)
def test_adam_of_mixed_dtypes(fused_adam, params, grads, states):
    tensors = inputs(5000, params, grads, states)
    expected = reference.adam(*exact(tensors), **ADAM)
    run_adam(fused_adam, [tensors])
    for actual, result in zip((tensors[0], tensors[2], tensors[3]), expected, strict=True):
        assert_rounds_to(actual, result)


@pytest.mark.parametrize(("params", "grads", "states"), MIXED)
def test_lion_of_mixed_dtypes(fused_lion, params, grads, states):
    tensors = inputs(5000, params, grads, states)[:3]
    direction = 0.9 * tensors[2].double() + 0.1 * tensors[1].double()
    expected = reference.lion(*exact(tensors), **LION)
    run_lion(fused_lion, [tensors])
    clear = direction.abs() > 1e-6  # nearer to zero, the sign depends on rounding
    assert_rounds_to(tensors[0][clear], expected[0][clear])
    assert_rounds_to(tensors[2], expected[1])


@pytest.mark.parametrize(("params", "grads", "states"), MIXED)
def test_lamb_of_mixed_dtypes(fused_lamb, params, grads, states):
    tensors = inputs(5000, params, grads, states)
    kept = [tensor.clone() for tensor in tensors]
    ratios = run_lamb(fused_lamb, [tensors])
    expected = reference.lamb(*exact(kept), **LAMB)
    # The second pass reads the moments as they were stored.
    stored = (tensors[2].double(), tensors[3].double())
    rate = LAMB["lr"] * math.sqrt(1 - 0.999**3) / (1 - 0.9**3)
    direction = stored[0] / (stored[1].sqrt() + LAMB["eps"]) + LAMB["weight_decay"] * kept[0].double()
    assert ratios.item() == pytest.approx(expected[3], rel=1e-4)
    assert_rounds_to(tensors[0], kept[0].double() - rate * expected[3] * direction, 2.0)
    assert_rounds_to(tensors[2], expected[1])
    assert_rounds_to(tensors[3], expected[2])


SHAPES = [(), (0,), (1,), (3, 0), (7,), (8,), (255,), (257,), (2047,), (2048,), (2049,), (4096,), (33, 311), (20_001,)]
INTERPRETED_SHAPES = [(), (0,), (7,), (2047,), (33, 65)]
"""The interpreter takes as long for each block as the others for all shapes."""


def is_interpreted(op):
    """Returns whether Triton's interpreter runs the op."""
    return op.__name__.startswith("triton_")


@pytest.mark.parametrize(("dtype", "offset"), [(DTYPES[0], 0), (DTYPES[0], 1), *((dtype, 1) for dtype in DTYPES[1:])])
def test_every_shape_is_updated_to_its_last_element_and_not_beyond(fused_adam, fused_lion, fused_lamb, dtype, offset):
    """In one call, at aligned and other addresses, with NaN before and after each tensor."""
    shapes = INTERPRETED_SHAPES if is_interpreted(fused_adam) else SHAPES
    for run, op, count in ((run_adam, fused_adam, 4), (run_lion, fused_lion, 3), (run_lamb, fused_lamb, 4)):
        many, plain, buffers = [], [], []
        for i, shape in enumerate(shapes):
            tensors = inputs(shape, dtype, dtype, seed=i)[:count]
            size, views = tensors[0].numel(), []
            for tensor in tensors:
                buffer = torch.full((size + 32,), math.nan, dtype=tensor.dtype)
                start = 16 + offset - (buffer.data_ptr() % 16) // buffer.element_size()
                views.append(buffer[start : start + size].view(shape).copy_(tensor))
                buffers.append((buffer, start, size))
            many.append(views)
            plain.append(tensors)
        run(op, many)
        for tensors in plain:
            run(op, [tensors])
        for views, tensors in zip(many, plain, strict=True):
            for view, tensor in zip(views, tensors, strict=True):
                # A call with fewer tensors splits them into other chunks, so it sums norms in another order.
                torch.testing.assert_close(view, tensor, rtol=2e-2 if dtype in LOW else 1e-5, atol=1e-6)
                assert not bool(view.isnan().any())
        for buffer, start, size in buffers:
            assert bool(buffer[:start].isnan().all()) and bool(buffer[start + size :].isnan().all())


def test_hundreds_of_tensors_of_mixed_dtypes_are_one_call(fused_adam, fused_lion, fused_lamb):
    for run, op, count in ((run_adam, fused_adam, 4), (run_lion, fused_lion, 3), (run_lamb, fused_lamb, 4)):
        many = [
            inputs(1 + i * 37 % 400, DTYPES[i % 3], DTYPES[i // 3 % 3], DTYPES[i // 9 % 3], seed=i)[:count]
            # More than one launch takes. The interpreter has no such limit, so fewer are enough.
            for i in range(20 if is_interpreted(op) else 60 if run is run_lamb else 480)
        ]
        alone = [[tensor.clone() for tensor in tensors] for tensors in many]
        run(op, many)
        for tensors, others in zip(many[::13], alone[::13], strict=True):
            run(op, [others])
            for tensor, other in zip(tensors, others, strict=True):
                torch.testing.assert_close(tensor, other, rtol=2e-2 if tensor.dtype in LOW else 1e-5, atol=1e-6)


def test_a_set_flag_stops_every_update(fused_adam, fused_lion, fused_lamb):
    for run, op, count in ((run_adam, fused_adam, 4), (run_lion, fused_lion, 3), (run_lamb, fused_lamb, 4)):
        tensors = inputs((3000,))[:count]
        kept = [tensor.clone() for tensor in tensors]
        for stop in (1, 2.0):
            run(op, [tensors], noop=stop)
            assert all(torch.equal(tensor, same) for tensor, same in zip(tensors, kept, strict=True))
        for go in (0, 0.0, -0.0):
            before = tensors[0].clone()
            run(op, [tensors], noop=go)
            assert not torch.equal(tensors[0], before)


@pytest.mark.parametrize("dtype", LOW)
def test_copies_are_the_new_parameters_rounded(fused_adam, fused_lion, fused_lamb, dtype):
    for run, op, count in ((run_adam, fused_adam, 4), (run_lion, fused_lion, 3), (run_lamb, fused_lamb, 4)):
        many = [inputs(size, torch.float32, dtype, seed=size)[:count] for size in (5, 2048, 5001)]
        copies = [torch.full_like(tensors[1], math.nan) for tensors in many]
        run(op, many, copies)
        for tensors, copy in zip(many, copies, strict=True):
            assert torch.equal(copy, tensors[0].to(dtype))


def test_numbers_on_the_device_have_the_effect_of_arguments(fused_adam, fused_lion, fused_lamb):
    on_device = {"lr_tensor": torch.tensor(1e-2), "step_tensor": torch.tensor(3.0)}
    for run, op, count, step in (
        (run_adam, fused_adam, 4, {"step": 0}),
        (run_lion, fused_lion, 3, {}),
        (run_lamb, fused_lamb, 4, {"step": 0}),
    ):
        for adamw in (True, False):
            mode = {"adamw_mode": adamw} if run is run_adam else {}
            by_tensors, by_arguments, scaled = (inputs((3000,))[:count] for _ in range(3))
            run(op, [by_arguments], **mode)
            run(op, [by_tensors], **on_device, **{**step, "lr": 0.0}, **mode)
            scaled[1] *= 1024.0
            run(op, [scaled], grad_scale=torch.tensor(1024.0), **mode)
            for plain, other, descaled in zip(by_arguments, by_tensors, scaled, strict=True):
                if plain is not by_arguments[1]:
                    torch.testing.assert_close(plain, other, rtol=1e-5, atol=1e-7)
                    torch.testing.assert_close(plain, descaled, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("step", [1, 2, 1000, 1_000_000])
def test_bias_correction_on_the_device_has_no_cancellation(fused_adam, step):
    for betas in ((0.9, 0.999), (0.5, 0.999999), (0.0, 0.0)):
        numbers = {"beta1": betas[0], "beta2": betas[1]}
        tensors = inputs((100,))
        expected = reference.adam(*exact(tensors), **{**ADAM, **numbers, "step": step})
        run_adam(fused_adam, [tensors], step=0, step_tensor=torch.tensor(float(step)), **numbers)
        torch.testing.assert_close(tensors[0].double(), expected[0], rtol=1e-5, atol=1e-6)


def test_lambs_sums_repeat_and_its_ratio_has_bounds(fused_lamb):
    results, size = [], 5003 if is_interpreted(fused_lamb) else 100_003
    for _ in range(2):
        many = [inputs((size,), seed=1), inputs((17,), seed=2)]
        ratios = run_lamb(fused_lamb, many)
        results.append((ratios, many))
    assert torch.equal(results[0][0], results[1][0])
    for first, second in zip(results[0][1], results[1][1], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    tensors = inputs((50,))
    assert run_lamb(fused_lamb, [tensors], max_coeff=0.02).item() == pytest.approx(0.02)
    tensors = inputs((50,))
    assert run_lamb(fused_lamb, [tensors], min_coeff=7.0).item() == pytest.approx(7.0)
    tensors = inputs((50,))
    tensors[0].zero_()
    assert run_lamb(fused_lamb, [tensors]).item() == 1.0
