"""DeepSpeed's functions of the fused optimizers' ops, over opforge's ops.

The first argument of each function is the loaded op; the op's module holds the functions with that argument bound.
`chunk_size` is accepted and ignored: the kernels split the tensors themselves, and no result depends on it. If
`noop_flag`, one int32 or float32 number on the tensors' device, is not zero, nothing is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor


def _lists(function: str, tensor_lists: Sequence[Sequence[Tensor]], names: str) -> list[list[Tensor]]:
    """Returns the named lists and the list of copies, which is empty if `tensor_lists` has none."""
    expected = names.count(",") + 1
    if len(tensor_lists) not in (expected, expected + 1):
        raise ValueError(
            f"{function}: tensor_lists has {len(tensor_lists)} lists, expected {expected} or {expected + 1}: [{names}],"
            " and optionally a list of tensors for copies of the new parameters"
        )
    return [list(tensors) for tensors in (*tensor_lists, ())[: expected + 1]]


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
    """Performs one step of Adam (`mode` 0) or AdamW (`mode` 1) on [grads, params, exp_avg, exp_avg_sq].

    `step` counts from 1. A fifth list receives copies of the new parameters in a dtype of its own: with bfloat16 copies
    of float32 parameters, a mixed-precision step is one pass.
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
    """Performs one step of Lion on [grads, params, exp_avg]; a fourth list receives copies of the new parameters.

    `step` is ignored: the rule does not depend on it.
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
    """Performs one step of LAMB on one parameter.

    `mode` 0 adds eps inside the square root, 1 outside. The gradient is divided by `grad_scale`. The new parameter is
    also written to `p_copy`, unless that is empty.

    Returns:
        The ratio of norms that was used, one float32 number on the parameter's device.
    """
    ratios = torch.ones(1, dtype=torch.float32, device=p.device)
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
