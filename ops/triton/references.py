"""References of the Triton kernels, in plain torch and in the dtype of the inputs: pass float64 for a reference.

The optimizers' rules are in `opforge.ops.reference`; the CPU's kernels are tested against them too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from opforge.ops.reference import adam, lamb, lion

__all__ = ["adam", "dequantize", "gelu", "lamb", "layer_norm", "lion", "quantize", "rms_norm", "softmax", "swiglu"]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Returns the layer norm (arXiv:1607.06450) over the last dimension, with the biased variance."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Returns the RMS norm (arXiv:1910.07467) over the last dimension."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def softmax(x: Tensor) -> Tensor:
    """Returns the softmax over the last dimension."""
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Returns GELU (arXiv:1606.08415), exact ("none") or by the paper's tanh approximation ("tanh")."""
    if approximate == "tanh":
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Returns SwiGLU (arXiv:2002.05202) of the two projections."""
    return gate * torch.sigmoid(gate) * up


def quantize(x: Tensor, group_size: int, bits: int, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the codes of groups of neighbours, int32 with one group per row and not packed, and scales and offsets.

    Symmetric: scale = max |x| / (2^(bits-1) - 1), code = round(x / scale), and the offsets are empty. Asymmetric:
    scale = (max - min) / (2^bits - 1), offset = min, code = round((x - min) / scale). If the scale is 0, the codes are
    0. Halves are rounded to even.
    """
    groups = x.reshape(-1, group_size)
    if symmetric:
        largest = 2 ** (bits - 1) - 1
        low, scale = torch.zeros_like(groups[:, 0]), groups.abs().amax(1) / largest
    else:
        largest = 2**bits - 1
        low = groups.amin(1)
        scale = (groups.amax(1) - low) / largest
    divisor = torch.where(scale > 0, scale, torch.ones_like(scale))
    codes = ((groups - low[:, None]) / divisor[:, None]).round().clamp(-largest if symmetric else 0, largest)
    return codes.to(torch.int32), scale, low.new_empty(0) if symmetric else low


def dequantize(codes: Tensor, scales: Tensor, offsets: Tensor) -> Tensor:
    """Returns the values of codes that are not packed, one group per row."""
    values = codes * scales[:, None]
    return values + offsets[:, None] if offsets.numel() else values
