"""The CPU optimizers' ops against float64 references: dtypes, shapes, layouts, special values, CPU levels, threads."""

import itertools
import math
import platform

import pytest
import torch

from opforge.builders.cpu.adagrad import CPUAdagradBuilder
from opforge.builders.cpu.adam import CPUAdamBuilder
from opforge.builders.cpu.lion import CPULionBuilder
from opforge.ops import reference

pytestmark = pytest.mark.compile

LOW = (torch.bfloat16, torch.float16)
COMBINATIONS = list(itertools.product((torch.float32, *LOW), (torch.float32, *LOW), (torch.float32, torch.bfloat16)))
ADAM = {"step": 3, "lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1}
LION = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}
ADAGRAD = {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.1}


def load(builder, level):
    """The op for a CPU level, or a skip where this machine cannot run it."""
    one = builder(target=f"cpu:{level}") if level else builder()
    answer = one.is_compatible()
    if not answer:
        pytest.skip(f"this CPU does not run {level}: {answer}")
    return one.load()


@pytest.fixture(scope="module", params=["", "x86-64", "x86-64-v3", "x86-64-v4"])
def level(request):
    if request.param and platform.machine() != "x86_64":
        pytest.skip(f"{request.param} is not this machine's architecture")
    return request.param


@pytest.fixture(scope="module")
def adam(level):
    return load(CPUAdamBuilder, level)


@pytest.fixture(scope="module")
def adagrad(level):
    return load(CPUAdagradBuilder, level)


@pytest.fixture(scope="module")
def lion(level):
    return load(CPULionBuilder, level)


def inputs(shape, params=torch.float32, grads=torch.float32, states=torch.float32, seed=0):
    """A parameter, its gradient, and a first and second moment such as a few steps would leave."""
    torch.manual_seed(seed)
    param, grad, first = torch.randn(shape), torch.randn(shape), 0.3 * torch.randn(shape)
    second = 0.1 * torch.rand(shape) + 1e-4
    return [param.to(params), grad.to(grads), first.to(states), second.to(states)]


def ulp(dtype, value):
    """The distance from |value| to the next number of `dtype`."""
    value = value.abs().to(dtype)
    up = torch.nextafter(value, torch.full_like(value, math.inf)) if dtype == torch.float32 else next_low(value)
    return (up.double() - value.double()).clamp_min(torch.finfo(dtype).smallest_normal)


def next_low(value):
    return (value.view(torch.int16) + 1).view(value.dtype)


def assert_rounds_to(actual, exact, scale=None):
    """`actual` is within one unit in the last place of the float32 result, rounded to its dtype."""
    dtype = actual.dtype
    wanted = exact.float().to(dtype)
    slack = 1.0 if dtype in LOW else 4.0
    allowed = slack * ulp(dtype, wanted if scale is None else scale.abs().maximum(wanted.double().abs()))
    error = (actual.double() - wanted.double()).abs()
    assert bool((error <= allowed).all()), f"off by {(error / allowed).max().item()} of what is allowed"


def run_adam(op, tensors, maximize=False, bias_correction=True, adamw_mode=True, **numbers):
    op.multi_adam_(
        *([tensor] for tensor in tensors),
        adamw_mode=adamw_mode,
        bias_correction=bias_correction,
        maximize=maximize,
        **{**ADAM, **numbers},
    )


@pytest.mark.parametrize(("params", "grads", "states"), COMBINATIONS)
@pytest.mark.parametrize(("adamw_mode", "maximize"), [(True, False), (False, True)])
def test_adam_matches_the_reference_in_every_dtype(adam, params, grads, states, adamw_mode, maximize):
    tensors = inputs(4097, params, grads, states)
    expected = reference.adam(*(t.double() for t in tensors), adamw_mode=adamw_mode, maximize=maximize, **ADAM)
    start = tensors[0].double()
    run_adam(adam, tensors, adamw_mode=adamw_mode, maximize=maximize)
    assert_rounds_to(tensors[0], expected[0], scale=start.abs() + (expected[0] - start).abs())
    # A difference of the average and the gradient may cancel: measured at the size of its terms.
    assert_rounds_to(tensors[2], expected[1], scale=torch.full_like(start, 1.0))
    assert_rounds_to(tensors[3], expected[2])


@pytest.mark.parametrize(("params", "grads", "states"), COMBINATIONS)
def test_adagrad_matches_the_reference_in_every_dtype(adagrad, params, grads, states):
    param, grad, _, total = inputs(4097, params, grads, states)
    start = param.double()
    expected = reference.adagrad(start, grad.double(), total.double(), **ADAGRAD)
    adagrad.multi_adagrad_([param], [grad], [total], maximize=False, **ADAGRAD)
    assert_rounds_to(param, expected[0], scale=start.abs() + (expected[0] - start).abs())
    assert_rounds_to(total, expected[1], scale=total.double() + (grad.double().abs() + 0.1 * start.abs()) ** 2)


@pytest.mark.parametrize(("params", "grads", "states"), COMBINATIONS)
@pytest.mark.parametrize("maximize", [False, True])
def test_lion_matches_the_reference_in_every_dtype(lion, params, grads, states, maximize):
    param, grad, average, _ = inputs(4097, params, grads, states)
    start = param.double()
    direction = 0.9 * average.double() + 0.1 * (-grad if maximize else grad).double()
    expected = reference.lion(start, grad.double(), average.double(), maximize=maximize, **LION)
    lion.multi_lion_([param], [grad], [average], maximize=maximize, **LION)
    clear = direction.abs() > 1e-6  # nearer to zero, the sign is a matter of rounding
    assert_rounds_to(param[clear], expected[0][clear], scale=start[clear])
    assert_rounds_to(average, expected[1], scale=torch.full_like(start, 1.0))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0), (15,), (16,), (17,), (63,), (65,), (33, 31), (1_000_003,)])
def test_every_shape_is_updated_to_its_last_element_and_no_further(adam, shape):
    tensors = inputs(shape)
    size = tensors[0].numel()
    # Poison on both sides, off the vectors' alignment: a write outside would show, and so would a read that matters.
    buffers = [torch.full((size + 67,), math.nan) for _ in tensors]
    views = [buffer[3 : 3 + size].view(shape).copy_(tensor) for buffer, tensor in zip(buffers, tensors, strict=True)]
    expected = reference.adam(*(t.double() for t in tensors), **ADAM)
    run_adam(adam, views)
    start = tensors[0].double()
    assert_rounds_to(views[0], expected[0], scale=start.abs() + (expected[0] - start).abs() + 0.1)
    assert_rounds_to(views[3], expected[2])
    for buffer in buffers:
        assert bool(buffer[:3].isnan().all()) and bool(buffer[3 + size :].isnan().all())


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("size", [1, 7, 17, 31])
def test_the_tail_of_a_low_precision_tensor_stays_inside(adam, dtype, size):
    tensors = inputs(size, dtype, dtype, torch.bfloat16)
    buffers = [torch.full((size + 40,), math.nan, dtype=tensor.dtype) for tensor in tensors]
    views = [buffer[1 : 1 + size].copy_(tensor) for buffer, tensor in zip(buffers, tensors, strict=True)]
    run_adam(adam, views)
    run_adam(adam, tensors)
    for view, tensor, buffer in zip(views, tensors, buffers, strict=True):
        assert torch.equal(view, tensor)
        assert bool(buffer[0].isnan()) and bool(buffer[1 + size :].isnan().all())


@pytest.mark.parametrize(
    "lay_out",
    [
        lambda t: t.to(memory_format=torch.channels_last),
        lambda t: t.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
    ],
)
def test_any_dense_order_of_dimensions_is_accepted(adam, lay_out):
    plain = inputs((4, 3, 5, 7))
    ordered = [lay_out(tensor.clone()) for tensor in plain]
    run_adam(adam, plain)
    run_adam(adam, ordered)
    for a, b in zip(plain, ordered, strict=True):
        assert torch.equal(a, b)


def test_results_do_not_depend_on_threads_lists_or_neighbours(adam):
    shapes = [(5,), (70_001,), (), (1000,), (33, 1001), (0,)]
    together = [inputs(shape, seed=i) for i, shape in enumerate(shapes)]
    alone = [[tensor.clone() for tensor in tensors] for tensors in together]
    serial = [[tensor.clone() for tensor in tensors] for tensors in together]
    modes = {"adamw_mode": True, "bias_correction": True, "maximize": False}
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        adam.multi_adam_(*([tensors[i] for tensors in together] for i in range(4)), **ADAM, **modes)
        torch.set_num_threads(1)
        adam.multi_adam_(*([tensors[i] for tensors in serial] for i in range(4)), **ADAM, **modes)
    finally:
        torch.set_num_threads(threads)
    adam.create_adam(901, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, False)
    for tensors in alone:
        numbers = [ADAM[name] for name in ("step", "lr", "beta1", "beta2", "eps", "weight_decay")]
        adam.adam_update(901, *numbers, True, *tensors)
    adam.destroy_adam(901)
    for a, b, c in zip(together, serial, alone, strict=True):
        for x, y, z in zip(a, b, c, strict=True):
            assert torch.equal(x, y) and torch.equal(x, z)


SPECIAL = [0.0, -0.0, 1.0, -1e-3, 1e-40, 1e-20, 1e18, 3e19, -1e30, 3.4e38, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("weight_decay", [0.0, 1e-2])
@pytest.mark.parametrize("adamw_mode", [True, False])
def test_nan_and_inf_pass_through_as_torchs_fused_kernel_passes_them(adam, weight_decay, adamw_mode):
    values = torch.tensor(SPECIAL)
    tensors = [t.reshape(-1).clone() for t in torch.meshgrid(values, values, values, values.abs(), indexing="ij")]
    theirs = [[tensor.clone()] for tensor in tensors]
    fused = torch._fused_adamw_ if adamw_mode else torch._fused_adam_
    numbers = {**ADAM, "weight_decay": weight_decay}
    steps = numbers.pop("step")
    fused(
        *theirs,
        [],
        [torch.tensor(float(steps))],
        amsgrad=False,
        maximize=False,
        **numbers,
    )
    run_adam(adam, tensors, adamw_mode=adamw_mode, weight_decay=weight_decay)
    for name, ours, [torchs] in zip(("params", "grads", "exp_avg", "exp_avg_sq"), tensors, theirs, strict=True):
        for kind in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(kind(ours), kind(torchs)), (name, kind)
    for name, ours, [torchs] in zip(("params", "grads", "exp_avg", "exp_avg_sq"), tensors, theirs, strict=True):
        finite = torchs.isfinite() & ours.isfinite()
        unlike = ~torch.isclose(ours[finite], torchs[finite], rtol=1e-4, atol=1e-9)
        assert not bool(unlike.any()), (name, ours[finite][unlike][:5], torchs[finite][unlike][:5])


def test_a_rollback_undoes_a_step(adam):
    adam.create_adam(902, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, False)
    adam.create_adam(903, 1e-3, 0.9, 0.999, 1e-8, 0.0, False, False)
    for number, adamw_mode in ((902, True), (903, False)):
        before = inputs(4099)
        after = [tensor.clone() for tensor in before]
        arguments = (number, 7, 1e-2, 0.9, 0.999, 1e-8, 0.1, True)
        adam.adam_update(*arguments, *after)
        expected = reference.adam_rollback(
            *(tensor.double() for tensor in after), **{**ADAM, "step": 7}, adamw_mode=adamw_mode
        )
        adam.adam_rollback(*arguments, *after)
        for restored, start, exact in zip((after[0], *after[2:]), (before[0], *before[2:]), expected, strict=True):
            torch.testing.assert_close(restored, start, rtol=2e-6, atol=2e-6)
            torch.testing.assert_close(restored.double(), exact, rtol=2e-6, atol=2e-6)
        adam.destroy_adam(number)


def test_a_rollback_works_in_low_precision(adam):
    adam.create_adam(904)
    before = inputs(100, torch.bfloat16, torch.bfloat16, torch.bfloat16)
    after = [tensor.clone() for tensor in before]
    arguments = (904, 1, 1e-2, 0.9, 0.999, 1e-8, 0.1, True)
    adam.adam_update(*arguments, *after)
    adam.adam_rollback(*arguments, *after)
    torch.testing.assert_close(after[0], before[0], rtol=1e-2, atol=1e-2)
    adam.destroy_adam(904)


@pytest.mark.parametrize(
    "numbers",
    [
        {"step": 1},
        {"step": 1_000_000},
        {"lr": 0.0},
        {"weight_decay": 0.0},
        {"eps": 1.0},
        {"eps": 1e-16},
        {"beta1": 0.0},
        {"beta1": 0.3},
        {"beta1": 0.5},
        {"beta2": 0.0},
        {"beta2": 0.4},
        {"beta2": 0.999999},
        {"lr": 1.5, "weight_decay": 1.0},
    ],
)
@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_unusual_numbers_give_the_references_result(adam, numbers, bias_correction, scale):
    tensors = inputs(1000)
    for i, power in ((1, 1), (2, 1), (3, 2)):
        tensors[i] *= scale**power
    before = [tensor.double() for tensor in tensors]
    settings = {**ADAM, **numbers}
    expected = reference.adam(*before, bias_correction=bias_correction, **settings)
    run_adam(adam, tensors, bias_correction=bias_correction, **settings)
    torch.testing.assert_close(tensors[0].double(), expected[0], rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(tensors[2].double(), expected[1], rtol=1e-6, atol=1e-6 * scale)
    torch.testing.assert_close(tensors[3].double(), expected[2], rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weight_decay", [1e-2, 0.0])
def test_a_hundred_steps_stay_as_close_to_float64_as_torchs_fused_kernel(adam, seed, weight_decay):
    torch.manual_seed(seed)
    start = torch.randn(50_000)
    settings = {**ADAM, "lr": 1e-3, "weight_decay": weight_decay}
    exact = (start.double(), torch.zeros(50_000).double(), torch.zeros(50_000).double())
    ours = [start.clone(), torch.zeros(50_000), torch.zeros(50_000)]
    theirs = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.AdamW([theirs], weight_decay=weight_decay, fused=True)
    for step in range(1, 101):
        grad = torch.randn(50_000) * (0.1 + torch.rand(50_000))
        settings["step"] = step
        exact = reference.adam(exact[0], grad.double(), exact[1], exact[2], **settings)
        run_adam(adam, [ours[0], grad, ours[1], ours[2]], **settings)
        theirs.grad = grad
        optimizer.step()
    our_error = (ours[0].double() - exact[0]).abs()
    their_error = (theirs.detach().double() - exact[0]).abs()
    # Without decay both round once a step, at the parameter's magnitude, and differ by chance alone: 0.2 % of the mean.
    assert our_error.mean() <= their_error.mean() * (1.0 if weight_decay else 1.002)
    assert our_error.max() <= their_error.max() * (1.0 if weight_decay else 1.05)


def test_bfloat16_and_float16_keep_every_value_that_a_step_of_zero_leaves(adam):
    for dtype in LOW:
        every = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)
        tensors = [every.clone(), torch.zeros_like(every), torch.zeros(65536), torch.zeros(65536)]
        run_adam(adam, tensors, lr=0.0, weight_decay=0.0)
        same = (tensors[0] == every) | (tensors[0].isnan() & every.isnan())
        assert bool(same.all())
        assert torch.equal(tensors[0].signbit()[~every.isnan()], every.signbit()[~every.isnan()])


@pytest.mark.parametrize("dtype", LOW)
def test_low_precision_results_round_to_nearest_even(adam, dtype):
    # With betas of 1, v = 1 and eps = 0 a step of lr = 1 takes a parameter from 0 to exactly -exp_avg.
    torch.manual_seed(1)
    anything = torch.randint(-(2**31), 2**31 - 1, (200_000,)).to(torch.int32).view(torch.float32)
    ties = [(torch.arange(0, 2**31, 1 << shift) + (1 << shift - 1)).to(torch.int32) for shift in (16, 13)]
    subnormal = torch.linspace(-6.2e-5, 6.2e-5, 65_537)
    value = torch.cat([anything, *(tie.view(torch.float32) for tie in ties), subnormal, torch.tensor(SPECIAL)])
    tensors = [torch.zeros(value.numel(), dtype=dtype), torch.zeros_like(value), value.clone(), torch.ones_like(value)]
    numbers = {"lr": 1.0, "beta1": 1.0, "beta2": 1.0, "eps": 0.0, "weight_decay": 0.0}
    run_adam(adam, tensors, bias_correction=False, **numbers)
    wanted = (-value).to(dtype)
    finite = value.isfinite()
    assert torch.equal(tensors[0][finite], wanted[finite])
    assert bool(tensors[0][value.isnan()].isnan().all())
    states = [torch.zeros_like(value), torch.zeros_like(value), value.to(torch.bfloat16), torch.ones_like(value)]
    states[3] = states[3].to(torch.bfloat16)
    kept = states[2].clone()
    run_adam(adam, states, bias_correction=False, **numbers)
    assert torch.equal(states[2][kept.isfinite()], kept[kept.isfinite()])
