"""Inputs of attention, and how far its results may be from those in float64."""

from __future__ import annotations

import torch

from opforge.ops import reference

MARGIN = 2.0
"""How many times torch's error, in the same dtype, ours may be."""


def randoms(shapes, dtype, seed=0):
    """Returns random tensors of these shapes."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def check_errors(ours, exact, tensors, gradients=True):
    """Compares results and gradients with those in float64. The root of the mean square of the error counts.

    `ours` is called with the tensors. `exact` is too, and with them in float64; its own error in their dtype is the
    limit.
    """
    results, limits, doubles = (
        _results(
            function, [tensor.detach().to(dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)], gradients
        )
        for function, dtypes in (
            (ours, [tensor.dtype for tensor in tensors]),
            (exact, [tensor.dtype for tensor in tensors]),
            (exact, [torch.float64] * len(tensors)),
        )
    )
    for number, (result, torchs, double) in enumerate(zip(results, limits, doubles, strict=True)):
        assert result.dtype == torchs.dtype and result.shape == double.shape
        error, limit = _error(result, double), _error(torchs, double)
        # A unit in the last place, of the inputs too, for errors of torch that are small by chance.
        least = torch.finfo(result.dtype).eps * max(_size(double), 1.0)
        assert error <= MARGIN * max(limit, least), f"result {number}: the error is {error}, torch's is {limit}"


def _results(function, tensors, gradients):
    leaves = [tensor.requires_grad_(gradients) for tensor in tensors]
    out = function(*leaves)
    if not gradients:
        return [out]
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    return [out.detach(), *torch.autograd.grad(out, leaves, dout.to(out.dtype))]


def _error(result, double):
    return _size(result.double() - double)


def _size(tensor):
    return tensor.double().square().mean().sqrt().nan_to_num(0.0).item()


def block_sparse(q, k, v, *biases, layout, block):
    """Returns what the reference gives for a layout, with DeepSpeed's order of dimensions."""
    hidden = layout.repeat_interleave(block, 1).repeat_interleave(block, 2) == 0
    tensors = (tensor.transpose(1, 2).unsqueeze(1) for tensor in (q, k, v))
    return reference.attention(*tensors, biases, hidden=hidden)[0].squeeze(1).transpose(1, 2)
