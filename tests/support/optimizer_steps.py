"""Parameters with gradients, and one optimizer's steps beside another's."""

import torch

from opforge.ops import FusedAdam, FusedLamb, FusedLion

EVERY = [FusedAdam, FusedLion, FusedLamb]
LOW = (torch.bfloat16, torch.float16)


def parameters(*shapes, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    params = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
    refresh(params)
    return params


def refresh(params, seed=None):
    if seed is not None:
        torch.manual_seed(seed)
    for param in params:
        param.grad = torch.randn(param.shape).to(param.dtype)


def copies(params):
    out = [torch.nn.Parameter(param.detach().clone()) for param in params]
    for new, old in zip(out, params, strict=True):
        new.grad = None if old.grad is None else old.grad.clone()
    return out


def assert_same(a, b, rtol=1e-5, atol=1e-6):
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x.detach(), y.detach(), rtol=rtol, atol=atol)


def steps_beside(ours, theirs, params, others, count=5):
    for _ in range(count):
        refresh(params)
        for param, other in zip(params, others, strict=True):
            other.grad = param.grad.clone()
        ours.step()
        theirs.step()
    assert_same(params, others)
