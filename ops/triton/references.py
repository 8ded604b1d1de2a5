"""What the Triton kernels compute, in plain torch and in the inputs' own dtype: pass float64 for a reference.

The optimizers' rules stand in `opforge.ops.reference`, which the CPU's kernels are tested against too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from opforge.ops.reference import adam, corrections, lion

__all__ = ["adam", "dequantize", "gelu", "lamb", "layer_norm", "lion", "quantize", "rms_norm", "softmax", "swiglu"]


def lamb(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    bias_correction: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """LAMB (arXiv:1904.00962, algorithm 2, with phi the identity): the new param, exp_avg, exp_avg_sq.

    The trust ratio is 1 where the parameter or the direction is 0 throughout. `step` counts from 1.
    """
    exp_avg = beta1 * exp_avg + (1.0 - beta1) * grad
    exp_avg_sq = beta2 * exp_avg_sq + (1.0 - beta2) * grad * grad
    correction1, correction2 = corrections(step, beta1, beta2, bias_correction)
    direction = exp_avg / correction1 / (exp_avg_sq.sqrt() / math.sqrt(correction2) + eps) + weight_decay * param
    lengths = param.norm(), direction.norm()
    ratio = lengths[0] / lengths[1] if lengths[0] > 0 and lengths[1] > 0 else torch.ones_like(lengths[0])
    return param - lr * ratio * direction, exp_avg, exp_avg_sq


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """arXiv:1607.06450, over the last dimension, with the biased variance."""
    about = x - x.mean(-1, keepdim=True)
    return about / (about.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """arXiv:1910.07467, over the last dimension."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def softmax(x: Tensor) -> Tensor:
    """Over the last dimension."""
    power = (x - x.amax(-1, keepdim=True)).exp()
    return power / power.sum(-1, keepdim=True)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """arXiv:1606.08415, exactly or by its tanh."""
    if approximate == "tanh":
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """arXiv:2002.05202, after the two projections."""
    return gate * torch.sigmoid(gate) * up


def quantize(x: Tensor, group_size: int, bits: int, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The codes of groups of neighbours, unpacked, a group a row; their scales and offsets (empty: symmetric).

    Symmetric: scale = max |x| / (2^(bits-1) - 1), code = round(x / scale). Asymmetric: scale = (max - min) / (2^bits -
    1), code = round((x - min) / scale). A group whose scale is 0 has codes of 0. Halves are rounded to even.
    """
    groups = x.reshape(-1, group_size)
    if symmetric:
        most = 2 ** (bits - 1) - 1
        low, scale = torch.zeros_like(groups[:, 0]), groups.abs().amax(1) / most
    else:
        most = 2**bits - 1
        low = groups.amin(1)
        scale = (groups.amax(1) - low) / most
    by = torch.where(scale > 0, scale, torch.ones_like(scale))
    codes = ((groups - low[:, None]) / by[:, None]).round().clamp(-most if symmetric else 0, most)
    return codes.to(torch.int32), scale, low.new_empty(0) if symmetric else low


def dequantize(codes: Tensor, scales: Tensor, offsets: Tensor) -> Tensor:
    """The values of unpacked codes, one group a row."""
    values = codes * scales[:, None]
    return values + offsets[:, None] if offsets.numel() else values
