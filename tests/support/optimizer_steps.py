"""Parameters with gradients, and steps of two optimizers that must agree."""

from __future__ import annotations

import torch

from opforge.ops import FusedAdam, FusedLamb, FusedLion

FUSED_OPTIMIZERS = [FusedAdam, FusedLion, FusedLamb]
LOW = (torch.bfloat16, torch.float16)


def parameters(*shapes, dtype=torch.float32, seed=0):
    """Returns random parameters of these shapes, with gradients."""
    torch.manual_seed(seed)
    params = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
    refresh(params)
    return params


def refresh(params, seed=None):
    """Gives the parameters new random gradients."""
    if seed is not None:
        torch.manual_seed(seed)
    for param in params:
        param.grad = torch.randn(param.shape).to(param.dtype)


def copies(params):
    """Returns copies of the parameters and their gradients."""
    new_params = [torch.nn.Parameter(param.detach().clone()) for param in params]
    for new, old in zip(new_params, params, strict=True):
        new.grad = None if old.grad is None else old.grad.clone()
    return new_params


def assert_same(tensors, others, rtol=1e-5, atol=1e-6):
    """Asserts that the tensors are pairwise close."""
    for tensor, other in zip(tensors, others, strict=True):
        torch.testing.assert_close(tensor.detach(), other.detach(), rtol=rtol, atol=atol)


def steps_beside(ours, theirs, params, others, count=5):
    """Performs steps of two optimizers with the same new gradients, and asserts that their parameters agree."""
    for _ in range(count):
        refresh(params)
        for param, other in zip(params, others, strict=True):
            other.grad = param.grad.clone()
        ours.step()
        theirs.step()
    assert_same(params, others)
