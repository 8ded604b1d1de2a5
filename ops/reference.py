"""The rules of the ops in plain torch: references that the kernels are tested against.

The functions work out of place and in the dtype of their inputs. All tensors of an optimizer's call have one shape.
Pass float64 tensors for a reference that rounds only in the last of 53 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def corrections(step: int, beta1: float, beta2: float, enabled: bool) -> tuple[float, float]:
    """Returns the divisors that correct two averages for their start at 0. `step` counts from 1. 1 unless `enabled`."""
    return (1.0 - beta1**step, 1.0 - beta2**step) if enabled else (1.0, 1.0)


def average(exp_avg: Tensor, grad: Tensor, beta: float) -> Tensor:
    """Returns beta * exp_avg + (1 - beta) * grad, as torch.lerp and torch.optim do: an infinite average becomes NaN."""
    return torch.lerp(exp_avg, grad.to(exp_avg.dtype), 1.0 - beta)


def adam(
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
    adamw_mode: bool = True,
    bias_correction: bool = True,
    maximize: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the param, exp_avg and exp_avg_sq after a step of Adam or AdamW. `step` counts from 1.

    Adam: arXiv:1412.6980, algorithm 1. AdamW (`adamw_mode`): arXiv:1711.05101, algorithm 2.
    """
    grad = -grad if maximize else grad
    if adamw_mode:
        param = param * (1.0 - lr * weight_decay)
    elif weight_decay != 0.0:
        grad = grad + weight_decay * param
    exp_avg = average(exp_avg, grad, beta1)
    exp_avg_sq = beta2 * exp_avg_sq + (1.0 - beta2) * grad * grad
    correction1, correction2 = corrections(step, beta1, beta2, bias_correction)
    denominator = exp_avg_sq.sqrt() / math.sqrt(correction2) + eps
    return param - lr / correction1 * exp_avg / denominator, exp_avg, exp_avg_sq


def adagrad(
    param: Tensor,
    grad: Tensor,
    total: Tensor,
    *,
    lr: float,
    eps: float,
    weight_decay: float,
    maximize: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns the param and the sum of squares after a step of diagonal Adagrad (jmlr.org/papers/v12/duchi11a.html)."""
    grad = -grad if maximize else grad
    if weight_decay != 0.0:
        grad = grad + weight_decay * param
    total = total + grad * grad
    return param - lr * (grad / (total.sqrt() + eps)), total


def lion(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    maximize: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns the param and exp_avg after a step of Lion (arXiv:2302.06675, algorithm 2).

    An element whose direction is NaN becomes NaN.
    """
    grad = -grad if maximize else grad
    direction = average(exp_avg, grad, beta1)
    sign = torch.where(direction.isnan(), direction, direction.sign())
    param = param * (1.0 - lr * weight_decay) - lr * sign
    return param, average(exp_avg, grad, beta2)


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
    max_coeff: float = 10.0,
    min_coeff: float = 0.01,
    eps_inside_sqrt: bool = False,
    bias_correction: bool = True,
    scale: float = 1.0,
    maximize: bool = False,
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Returns the param, exp_avg, exp_avg_sq and the ratio of norms after a step of LAMB.

    arXiv:1904.00962, algorithm 2. The rule has DeepSpeed's form: bias correction scales the step instead of the
    moments, and the ratio of norms is clamped to [min_coeff, max_coeff].
    """
    grad = (-grad if maximize else grad) / scale
    exp_avg = average(exp_avg, grad, beta1)
    exp_avg_sq = beta2 * exp_avg_sq + (1.0 - beta2) * grad * grad
    root = (exp_avg_sq + eps).sqrt() if eps_inside_sqrt else exp_avg_sq.sqrt() + eps
    direction = exp_avg / root + weight_decay * param
    norms = float(param.norm()), float(direction.norm())
    ratio = min(max(norms[0] / norms[1], min_coeff), max_coeff) if all(norms) else 1.0
    correction1, correction2 = corrections(step, beta1, beta2, bias_correction)
    rate = lr * math.sqrt(correction2) / correction1
    return param - rate * ratio * direction, exp_avg, exp_avg_sq, ratio


def group_params(values: Tensor, bits: int, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Returns the scale and the offset of each row of [groups, elements], each [groups, 1].

    The scale is 1 if it would be 0.
    """
    levels = 2.0 ** (bits - 1)
    high, low = values.amax(1, keepdim=True), values.amin(1, keepdim=True)
    radius = values.abs().amax(1, keepdim=True) if symmetric else (high - low) / 2
    offset = torch.zeros_like(radius) if symmetric else (high + low) / 2
    return torch.where(radius == 0, torch.ones_like(radius), radius / levels), offset


def quantize(values: Tensor, bits: int, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the codes of [groups, elements], integers in the values' dtype, and each row's scale and offset."""
    levels = 2.0 ** (bits - 1)
    scale, offset = group_params(values, bits, symmetric)
    return ((values - offset) / scale).round().clamp(-levels, levels - 1), scale, offset


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    biases: Sequence[Tensor] = (),
    *,
    scale: float | None = None,
    hidden: Tensor | None = None,
    causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns softmax(q k^T * scale + biases) v and the logarithm of each query's sum, with all scores in memory.

    Tensors are [outer, inner, length, heads, size], and scores [outer, inner, heads, queries, keys]. `scale` is
    1 / sqrt(size) by default (arXiv:1706.03762, section 3.2.1). Where `hidden` is true, a query does not see a key; if
    `causal`, query i sees keys 0 to i. A query that sees no key, or only scores of -inf, has the result 0.
    """
    scores = torch.einsum("oiqhd,oikhd->oihqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    for bias in biases:
        scores = scores + bias
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    sums = scores.logsumexp(-1) if scores.shape[-1] else scores.new_full(scores.shape[:-1], -math.inf)
    sees_none = (sums == -math.inf).unsqueeze(-1)
    # Not by the sums: beside the lowest number of a mask they cannot hold the logarithm of how many keys there are.
    weights = scores.masked_fill(sees_none, 0.0).softmax(-1).masked_fill(sees_none, 0.0)
    return torch.einsum("oihqk,oikhd->oiqhd", weights, v), sums
