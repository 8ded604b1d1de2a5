"""Inputs, calls and comparisons for tests of the fused optimizers' ops, against references in float64."""

from __future__ import annotations

import torch

LOW = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *LOW)
ADAM = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1, "step": 3}
LION = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}
LAMB = {**ADAM, "max_coeff": 10.0, "min_coeff": 0.01}


def inputs(shape, params=torch.float32, grads=torch.float32, states=torch.float32, seed=0):
    """Returns a parameter, its gradient, and a first and second moment as a few steps would leave them."""
    torch.manual_seed(seed)
    param, grad, first = torch.randn(shape), torch.randn(shape), 0.3 * torch.randn(shape)
    second = 0.1 * torch.rand(shape) + 1e-3
    return [param.to(params), grad.to(grads), first.to(states), second.to(states)]


def noop_flag(value=0):
    """Returns a noop flag: DeepSpeed's is an int, GradScaler's a float."""
    return torch.tensor([value], dtype=torch.float32 if isinstance(value, float) else torch.int32)


def run_adam(op, parameters, copies=(), noop=0, **numbers):
    """Performs a step; each element of `parameters` is [param, grad, exp_avg, exp_avg_sq]."""
    numbers = {**ADAM, "adamw_mode": True, "bias_correction": True, "maximize": False, **numbers}
    lists = [[tensors[i] for tensors in parameters] for i in range(4)]
    op.fused_adam_(noop_flag(noop), *lists, list(copies), **numbers)


def run_lion(op, parameters, copies=(), noop=0, **numbers):
    """Performs a step; each element of `parameters` is [param, grad, exp_avg]."""
    lists = [[tensors[i] for tensors in parameters] for i in range(3)]
    op.fused_lion_(noop_flag(noop), *lists, list(copies), **{**LION, **numbers})


def run_lamb(op, parameters, copies=(), noop=0, **numbers):
    """Performs a step as `run_adam` does, and returns the ratios."""
    numbers = {**LAMB, "eps_inside_sqrt": False, "bias_correction": True, "scale": 1.0, **numbers}
    lists = [[tensors[i] for tensors in parameters] for i in range(4)]
    ratios = torch.ones(len(parameters))
    op.fused_lamb_(noop_flag(noop), *lists, list(copies), ratios=ratios, **numbers)
    return ratios


def spacing(dtype, value):
    """Returns the distance between neighbouring numbers of `dtype` near each of the values."""
    info = torch.finfo(dtype)
    return (value.abs().clamp_min(info.smallest_normal) * info.eps).double()


def assert_rounds_to(actual, exact, units=1.0, scale=None):
    """Asserts that `actual` is within `units` in the last place, at the magnitude of `scale`, of the float64 result."""
    dtype = actual.dtype
    allowed = units * spacing(dtype, exact if scale is None else scale.maximum(exact.abs()))
    allowed = allowed + 4.0 * spacing(torch.float32, torch.ones_like(exact) if scale is None else scale)
    error = (actual.double() - exact).abs()
    assert bool((error <= allowed).all()), f"off by {(error / allowed).max().item()} of what is allowed"


def exact(tensors):
    """Returns the tensors in float64."""
    return [tensor.double() for tensor in tensors]
