"""The optimizers' rules in plain torch, out of place and in the inputs' own dtype: what the kernels are tested against.

All tensors of a call have one shape. Pass float64 tensors for a reference that rounds only in the last of 53 bits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


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
    """Adam (arXiv:1412.6980, algorithm 1) or AdamW (arXiv:1711.05101, algorithm 2): the new param, exp_avg, exp_avg_sq.

    `step` counts from 1.
    """
    grad = -grad if maximize else grad
    if adamw_mode:
        param = param * (1.0 - lr * weight_decay)
    elif weight_decay != 0.0:
        grad = grad + weight_decay * param
    exp_avg = beta1 * exp_avg + (1.0 - beta1) * grad
    exp_avg_sq = beta2 * exp_avg_sq + (1.0 - beta2) * grad * grad
    correction1 = 1.0 - beta1**step if bias_correction else 1.0
    correction2 = 1.0 - beta2**step if bias_correction else 1.0
    denominator = exp_avg_sq.sqrt() / math.sqrt(correction2) + eps
    return param - lr / correction1 * exp_avg / denominator, exp_avg, exp_avg_sq


def adam_rollback(
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
) -> tuple[Tensor, Tensor, Tensor]:
    """What `adam` started from, given its results and its gradient. beta1, beta2, 1 - lr * weight_decay are not 0."""
    correction1 = 1.0 - beta1**step if bias_correction else 1.0
    correction2 = 1.0 - beta2**step if bias_correction else 1.0
    param = param + lr / correction1 * exp_avg / (exp_avg_sq.sqrt() / math.sqrt(correction2) + eps)
    if adamw_mode:
        param = param / (1.0 - lr * weight_decay)
    else:
        grad = grad + weight_decay * param
    exp_avg = (exp_avg - (1.0 - beta1) * grad) / beta1
    exp_avg_sq = (exp_avg_sq - (1.0 - beta2) * grad * grad) / beta2
    return param, exp_avg, exp_avg_sq.clamp_min(0.0)


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
    """Diagonal Adagrad (jmlr.org/papers/v12/duchi11a.html): the new param and sum of squares."""
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
    """Lion (arXiv:2302.06675, algorithm 2): the new param and exp_avg. A direction of NaN makes the parameter NaN."""
    grad = -grad if maximize else grad
    direction = beta1 * exp_avg + (1.0 - beta1) * grad
    sign = torch.where(direction.isnan(), direction, direction.sign())
    param = param * (1.0 - lr * weight_decay) - lr * sign
    return param, beta2 * exp_avg + (1.0 - beta2) * grad
