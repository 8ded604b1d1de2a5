"""The fused Adam op for special values: NaN, infinity, subnormal numbers, ties. Kernels as in test_fused_ops.py."""

import math

import pytest
import torch
from support.fused_ops import ADAM, LOW, run_adam

# numpy, which interprets Triton, warns about what a GPU does silently: x / 0, an overflow to infinity.
pytestmark = [pytest.mark.compile, pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")]

SPECIAL = [0.0, -0.0, 1.0, -1e-3, 1e-40, 1e18, 3e19, 3.4e38, math.inf, -math.inf, math.nan]


def test_nan_and_inf_propagate_as_in_torchs_fused_kernel(fused_adam):
    values = torch.tensor(SPECIAL)
    tensors = [t.reshape(-1).clone() for t in torch.meshgrid(values, values, values, values.abs(), indexing="ij")]
    theirs = [[tensor.clone()] for tensor in tensors]
    numbers = dict(ADAM)
    steps = [torch.tensor(float(numbers.pop("step")))]
    torch._fused_adamw_(*theirs, [], steps, amsgrad=False, maximize=False, **numbers)
    run_adam(fused_adam, [tensors])
    for ours, [torchs] in zip(tensors, theirs, strict=True):
        for kind in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(kind(ours), kind(torchs))


def test_a_beta_next_to_a_half_is_a_half(fused_adam):
    averages, grads = torch.tensor([1.0, -3.0]), torch.tensor([2.0, 5.0])
    run_adam(fused_adam, [[torch.zeros(2), grads, averages, torch.ones(2)]], beta1=0.5 + 1e-12)
    assert averages.tolist() == [1.5, 1.0]


@pytest.mark.parametrize("beta", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_an_average_is_that_of_torchs_lerp_for_each_beta(fused_adam, beta):
    averages, grads = (t.reshape(-1).clone() for t in torch.meshgrid(*[torch.tensor(SPECIAL)] * 2, indexing="ij"))
    expected = torch.lerp(averages, grads, 1.0 - beta)
    run_adam(fused_adam, [[torch.zeros_like(grads), grads, averages, torch.ones_like(grads)]], beta1=beta)
    torch.testing.assert_close(averages, expected, rtol=1e-6, atol=0.0, equal_nan=True)


def step_of(op):
    """Returns which part of many values an op gets: Triton's interpreter takes seconds for all."""
    return 7 if op.__name__.startswith("triton_") else 1


def test_low_precision_results_round_to_nearest_even(fused_adam):
    # With betas of 1, v = 1 and eps = 0 a step of lr = 1 takes a parameter from 0 to exactly -exp_avg.
    torch.manual_seed(1)
    anything = torch.randint(-(2**31), 2**31 - 1, (20_000,)).to(torch.int32).view(torch.float32)
    ties = [(torch.arange(0, 2**31, 1 << shift) + (1 << shift - 1)).to(torch.int32) for shift in (16, 13)]
    subnormal = torch.linspace(-6.2e-5, 6.2e-5, 8193)
    value = torch.cat([anything, ties[0].view(torch.float32), ties[1][::7].view(torch.float32), subnormal])
    value = value[:: step_of(fused_adam)].contiguous()
    numbers = {"lr": 1.0, "beta1": 1.0, "beta2": 1.0, "eps": 0.0, "weight_decay": 0.0, "bias_correction": False}
    for dtype in LOW:
        tensors = [torch.zeros(value.numel(), dtype=dtype), torch.zeros_like(value), value, torch.ones_like(value)]
        moved = [tensor.clone() for tensor in tensors]
        run_adam(fused_adam, [moved], **numbers)
        expected, finite = (-value).to(dtype), value.isfinite()
        assert torch.equal(moved[0][finite], expected[finite])
        assert bool(moved[0][value.isnan()].isnan().all())


def test_a_step_with_a_rate_of_zero_keeps_every_16_bit_value(fused_adam):
    for dtype in LOW:
        every = torch.arange(-32768, 32768, step_of(fused_adam), dtype=torch.int32).to(torch.int16).view(dtype)
        tensors = [every.clone(), torch.zeros_like(every), *torch.zeros(2, every.numel())]
        run_adam(fused_adam, [tensors], lr=0.0, weight_decay=0.0)
        number = ~every.isnan()
        assert torch.equal(tensors[0][number], every[number])
        assert torch.equal(tensors[0][number].signbit(), every[number].signbit())
        assert bool(tensors[0][~number].isnan().all())
