"""Inputs, calls and comparisons for tests of the CPU optimizers' ops, against references in float64."""

from __future__ import annotations

import math

import torch

LOW = (torch.bfloat16, torch.float16)
ADAM = {"step": 3, "lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1}


def inputs(shape, params=torch.float32, grads=torch.float32, states=torch.float32, seed=0):
    """Returns a parameter, its gradient, and a first and second moment as a few steps would leave them."""
    torch.manual_seed(seed)
    param, grad, first = torch.randn(shape), torch.randn(shape), 0.3 * torch.randn(shape)
    second = 0.1 * torch.rand(shape) + 1e-4
    return [param.to(params), grad.to(grads), first.to(states), second.to(states)]


def ulp(dtype, value):
    """Returns the distance from |value| to the next number of `dtype`."""
    value = value.abs().to(dtype)
    up = torch.nextafter(value, torch.full_like(value, math.inf)) if dtype == torch.float32 else next_low(value)
    return (up.double() - value.double()).clamp_min(torch.finfo(dtype).smallest_normal)


def next_low(value):
    """Returns the next larger number of a positive 16-bit float."""
    return (value.view(torch.int16) + 1).view(value.dtype)


def assert_rounds_to(actual, exact, scale=None):
    """Asserts that `actual` is near the float32 result, rounded to its dtype.

    The distance may be one unit in the last place at the magnitude of `scale`, for float32 four.
    """
    dtype = actual.dtype
    expected = exact.float().to(dtype)
    slack = 1.0 if dtype in LOW else 4.0
    allowed = slack * ulp(dtype, expected if scale is None else scale.abs().maximum(expected.double().abs()))
    error = (actual.double() - expected.double()).abs()
    assert bool((error <= allowed).all()), f"off by {(error / allowed).max().item()} of what is allowed"


def run_adam(op, tensors, maximize=False, bias_correction=True, adamw_mode=True, **numbers):
    """Performs a step on one parameter; `tensors` are param, grad, exp_avg, exp_avg_sq."""
    op.multi_adam_(
        *([tensor] for tensor in tensors),
        adamw_mode=adamw_mode,
        bias_correction=bias_correction,
        maximize=maximize,
        **{**ADAM, **numbers},
    )
