"""The CPU Adam op at several CPU levels: special values, unusual options, rollbacks, rounding, many steps."""

import math

import pytest
import torch
from support.cpu_ops import ADAM, LOW, inputs, run_adam

from opforge.ops import reference

pytestmark = pytest.mark.compile

SPECIAL = [0.0, -0.0, 1.0, -1e-3, 1e-40, 1e-20, 1e18, 3e19, -1e30, 3.4e38, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("weight_decay", [0.0, 1e-2])
@pytest.mark.parametrize("adamw_mode", [True, False])
def test_nan_and_inf_propagate_as_in_torchs_fused_kernel(cpu_adam, weight_decay, adamw_mode):
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
    run_adam(cpu_adam, tensors, adamw_mode=adamw_mode, weight_decay=weight_decay)
    for name, ours, [torchs] in zip(("params", "grads", "exp_avg", "exp_avg_sq"), tensors, theirs, strict=True):
        for kind in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(kind(ours), kind(torchs)), (name, kind)
    for name, ours, [torchs] in zip(("params", "grads", "exp_avg", "exp_avg_sq"), tensors, theirs, strict=True):
        finite = torchs.isfinite() & ours.isfinite()
        unlike = ~torch.isclose(ours[finite], torchs[finite], rtol=1e-4, atol=1e-9)
        assert not bool(unlike.any()), (name, ours[finite][unlike][:5], torchs[finite][unlike][:5])


@pytest.mark.parametrize("dtype", [torch.float32, *LOW])
def test_a_step_of_lion_uphill_is_the_step_down_the_negative_gradient_to_the_bit(cpu_lion, dtype):
    """The usual numbers of Lion have a kernel of their own, which `maximize` does not use."""
    numbers = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}
    for size in (1, 15, 16, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 1000, 4097):
        values = torch.tensor([*SPECIAL, -3.4e38, 65504.0, -1e-45])
        tensors = [torch.randn(size).to(kind) for kind in (dtype, dtype, torch.float32)]
        for tensor in tensors:
            special = torch.rand(size) < 0.3
            tensor[special] = values[torch.randint(len(values), (int(special.sum()),))].to(tensor.dtype)
        down = [tensor.clone() for tensor in tensors]
        up = [tensors[0].clone(), -tensors[1], tensors[2].clone()]
        cpu_lion.multi_lion_(*[[tensor] for tensor in down], **numbers, maximize=False)
        cpu_lion.multi_lion_(*[[tensor] for tensor in up], **numbers, maximize=True)
        for ours, others in ((down[0], up[0]), (down[2], up[2])):
            bits = torch.int32 if ours.dtype == torch.float32 else torch.int16
            assert torch.equal(ours.isnan(), others.isnan())
            assert torch.equal(ours.view(bits)[~ours.isnan()], others.view(bits)[~ours.isnan()])


@pytest.mark.parametrize("offset", [0, 16, 32, 48, 64])
def test_a_step_is_the_same_wherever_the_operands_lie_beside_each_other(cpu_adam, offset):
    """Of operands in one memory, a group of values is read while the group before it is not stored yet."""
    count = 1000
    memory = torch.zeros(4 * (count + 64) + 64)
    places = [index * (count + offset) for index in range(4)]
    together = [memory[place : place + count] for place in places]
    for operand, value in zip(together, inputs(count), strict=True):
        operand.copy_(value)
    apart = [operand.clone() for operand in together]
    run_adam(cpu_adam, together)
    run_adam(cpu_adam, apart)
    assert all(map(torch.equal, together, apart))


def test_a_rollback_restores_the_state_before_the_step(cpu_adam):
    cpu_adam.create_adam(902, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, False)
    cpu_adam.create_adam(903, 1e-3, 0.9, 0.999, 1e-8, 0.0, False, False)
    for number in (902, 903):
        before = inputs(4099)
        after = [tensor.clone() for tensor in before]
        arguments = (number, 7, 1e-2, 0.9, 0.999, 1e-8, 0.1, True)
        cpu_adam.adam_update(*arguments, *after)
        cpu_adam.adam_rollback(*arguments, *after)
        for restored, start in zip((after[0], *after[2:]), (before[0], *before[2:]), strict=True):
            torch.testing.assert_close(restored, start, rtol=2e-6, atol=2e-6)
        cpu_adam.destroy_adam(number)


def test_a_rollback_works_in_low_precision(cpu_adam):
    cpu_adam.create_adam(904)
    before = inputs(100, torch.bfloat16, torch.bfloat16, torch.bfloat16)
    after = [tensor.clone() for tensor in before]
    arguments = (904, 1, 1e-2, 0.9, 0.999, 1e-8, 0.1, True)
    cpu_adam.adam_update(*arguments, *after)
    cpu_adam.adam_rollback(*arguments, *after)
    torch.testing.assert_close(after[0], before[0], rtol=1e-2, atol=1e-2)
    cpu_adam.destroy_adam(904)


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
def test_unusual_options_agree_with_the_reference(cpu_adam, numbers, bias_correction, scale):
    tensors = inputs(1000)
    for i, power in ((1, 1), (2, 1), (3, 2)):
        tensors[i] *= scale**power
    before = [tensor.double() for tensor in tensors]
    settings = {**ADAM, **numbers}
    expected = reference.adam(*before, bias_correction=bias_correction, **settings)
    run_adam(cpu_adam, tensors, bias_correction=bias_correction, **settings)
    torch.testing.assert_close(tensors[0].double(), expected[0], rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(tensors[2].double(), expected[1], rtol=1e-6, atol=1e-6 * scale)
    torch.testing.assert_close(tensors[3].double(), expected[2], rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weight_decay", [1e-2, 0.0])
def test_a_hundred_steps_stay_as_close_to_float64_as_torchs_fused_kernel(cpu_adam, seed, weight_decay):
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
        run_adam(cpu_adam, [ours[0], grad, ours[1], ours[2]], **settings)
        theirs.grad = grad
        optimizer.step()
    our_error = (ours[0].double() - exact[0]).abs()
    their_error = (theirs.detach().double() - exact[0]).abs()
    # Without decay, both round once per step at the parameter's magnitude. They differ by chance, by 0.2 % of the mean.
    assert our_error.mean() <= their_error.mean() * (1.0 if weight_decay else 1.002)
    assert our_error.max() <= their_error.max() * (1.0 if weight_decay else 1.05)


def test_a_step_with_a_rate_of_zero_keeps_every_16_bit_value(cpu_adam):
    for dtype in LOW:
        every = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)
        tensors = [every.clone(), torch.zeros_like(every), torch.zeros(65536), torch.zeros(65536)]
        run_adam(cpu_adam, tensors, lr=0.0, weight_decay=0.0)
        same = (tensors[0] == every) | (tensors[0].isnan() & every.isnan())
        assert bool(same.all())
        assert torch.equal(tensors[0].signbit()[~every.isnan()], every.signbit()[~every.isnan()])


@pytest.mark.parametrize("dtype", LOW)
def test_low_precision_results_round_to_nearest_even(cpu_adam, dtype):
    # With betas of 1, v = 1 and eps = 0 a step of lr = 1 takes a parameter from 0 to exactly -exp_avg.
    torch.manual_seed(1)
    anything = torch.randint(-(2**31), 2**31 - 1, (200_000,)).to(torch.int32).view(torch.float32)
    ties = [(torch.arange(0, 2**31, 1 << shift) + (1 << shift - 1)).to(torch.int32) for shift in (16, 13)]
    subnormal = torch.linspace(-6.2e-5, 6.2e-5, 65_537)
    value = torch.cat([anything, *(tie.view(torch.float32) for tie in ties), subnormal, torch.tensor(SPECIAL)])
    tensors = [torch.zeros(value.numel(), dtype=dtype), torch.zeros_like(value), value.clone(), torch.ones_like(value)]
    numbers = {"lr": 1.0, "beta1": 1.0, "beta2": 1.0, "eps": 0.0, "weight_decay": 0.0}
    run_adam(cpu_adam, tensors, bias_correction=False, **numbers)
    expected = (-value).to(dtype)
    finite = value.isfinite()
    assert torch.equal(tensors[0][finite], expected[finite])
    assert bool(tensors[0][value.isnan()].isnan().all())
    states = [torch.zeros_like(value), torch.zeros_like(value), value.to(torch.bfloat16), torch.ones_like(value)]
    states[3] = states[3].to(torch.bfloat16)
    kept = states[2].clone()
    run_adam(cpu_adam, states, bias_correction=False, **numbers)
    assert torch.equal(states[2][kept.isfinite()], kept[kept.isfinite()])
