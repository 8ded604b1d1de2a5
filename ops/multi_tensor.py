"""DeepSpeed's calls of the fused optimizers' ops, over ours. The first argument is the loaded op, whose module has them
bound.

`chunk_size` is taken as given and not used: the kernels cut the tensors themselves, and no result depends on it.
Nothing is changed where `noop_flag`, one int32 or float32 number on the tensors' device, is not zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor


def _lists(call: str, tensor_lists: Sequence[Sequence[Tensor]], names: str) -> list[list[Tensor]]:
    wanted = names.count(",") + 1
    if len(tensor_lists) not in (wanted, wanted + 1):
        raise ValueError(
            f"{call}: tensor_lists has {len(tensor_lists)} lists, expected {wanted} or {wanted + 1}: [{names}], and "
            "where each new parameter is also to be written in a dtype of its own"
        )
    return [list(tensors) for tensors in (*tensor_lists, ())[: wanted + 1]]


def multi_tensor_adam(
    op: Any,
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Sequence[Sequence[Tensor]],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
) -> None:
    """One step of Adam for [grads, params, exp_avg, exp_avg_sq]; `mode` 0 is Adam, 1 AdamW. `step` counts from 1.

    A fifth list takes copies of the new parameters, in a dtype of their own: with bfloat16 copies of float32 parameters
    a step of mixed precision is one pass.
    """
    grads, params, exp_avgs, exp_avg_sqs, copies = _lists(
        "multi_tensor_adam", tensor_lists, "grads, params, exp_avg, exp_avg_sq"
    )
    op.fused_adam_(
        noop_flag,
        params,
        grads,
        exp_avgs,
        exp_avg_sqs,
        copies,
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        eps=eps,
        step=step,
        adamw_mode=bool(mode),
        bias_correction=bool(bias_correction),
        weight_decay=weight_decay,
    )


def multi_tensor_lion(
    op: Any,
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Sequence[Sequence[Tensor]],
    lr: float,
    beta1: float,
    beta2: float,
    step: int,
    weight_decay: float,
) -> None:
    """One step of Lion for [grads, params, exp_avg], and copies of the parameters if given. The rule has no use for
    `step`.
    """
    grads, params, exp_avgs, copies = _lists("multi_tensor_lion", tensor_lists, "grads, params, exp_avg")
    op.fused_lion_(
        noop_flag, params, grads, exp_avgs, copies, lr=lr, beta1=beta1, beta2=beta2, weight_decay=weight_decay
    )


def lamb(
    op: Any,
    p: Tensor,
    p_copy: Tensor,
    m: Tensor,
    v: Tensor,
    g: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    max_coeff: float,
    min_coeff: float,
    eps: float,
    grad_scale: float,
    step: int,
    mode: int,
    bias_correction: int,
    decay: float,
) -> Tensor:
    """One step of LAMB for one parameter: the ratio of norms it used, one float32 number on the parameter's device.

    `mode` 0 adds eps inside the square root, 1 outside. The gradient is divided by `grad_scale`. An empty `p_copy` is
    left alone; otherwise the new parameter is written there too.
    """
    ratios = torch.ones(1, device=p.device)
    op.fused_lamb_(
        torch.zeros(1, dtype=torch.int32, device=p.device),
        [p],
        [g],
        [m],
        [v],
        [p_copy] if p_copy.numel() else [],
        ratios=ratios,
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        max_coeff=max_coeff,
        min_coeff=min_coeff,
        eps=eps,
        scale=grad_scale,
        step=step,
        eps_inside_sqrt=mode == 0,
        bias_correction=bool(bias_correction),
        weight_decay=decay,
    )
    return ratios


def adam_functions(op: Any) -> dict[str, Any]:
    """Returns the Python functions of the loaded op fused_adam, by name."""
    return {"multi_tensor_adam": partial(multi_tensor_adam, op)}


def lamb_functions(op: Any) -> dict[str, Any]:
    """Returns the Python functions of the loaded op fused_lamb, by name."""
    return {"lamb": partial(lamb, op)}


def lion_functions(op: Any) -> dict[str, Any]:
    """Returns the Python functions of the loaded op fused_lion, by name."""
    return {"multi_tensor_lion": partial(multi_tensor_lion, op)}
