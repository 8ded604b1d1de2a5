"""Adam and AdamW over lists of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from opforge.builders.triton.launching import Kernels
from opforge.builders.triton.optimizers import TritonAdamBuilder

from . import chunks, registry

OP = TritonAdamBuilder.name


def multi_adam(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    *,
    step: int,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    adamw_mode: bool = True,
    bias_correction: bool = True,
    grad_scale: float = 1.0,
) -> None:
    """One step of Adam, or AdamW, in place, over all tensors in one launch; `step` counts from 1.

    Parameters and gradients have one dtype (float32, bfloat16, float16), the moments are float32. Gradients are
    multiplied by `grad_scale` first; -1 maximises. Raises ValueError, TypeError, KernelLaunchError.
    """
    numbers = {"step": step, "lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
    modes = {"adamw_mode": adamw_mode, "bias_correction": bias_correction, "grad_scale": grad_scale}
    _multi_adam(params, grads, exp_avgs, exp_avg_sqs, **numbers, **modes)


def bind(kernels: Kernels) -> dict[str, Any]:
    """Launch these kernels from now on; gives back the op's functions by name."""
    registry.bind(kernels)
    return {"multi_adam": multi_adam}


def _run(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    *,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    adamw_mode: bool,
    bias_correction: bool,
    grad_scale: float,
) -> None:
    lists = {"params": params, "grads": grads, "exp_avgs": exp_avgs, "exp_avg_sqs": exp_avg_sqs}
    chunks.check(OP, lists, ("exp_avgs", "exp_avg_sqs"))
    if not any(one.numel() for one in params):
        return
    rate, root = corrections(OP, step, beta1, beta2, bias_correction)
    table = chunks.table(list(lists.values()))
    keep, decay = (1.0 - lr * weight_decay, 0.0) if adamw_mode else (1.0, weight_decay)
    moments = (beta1, 1.0 - beta1, beta2, 1.0 - beta2)
    numbers = (grad_scale, keep, decay, *moments, lr * rate, root, eps)
    name = f"update_{registry.dtype_name(OP, params[0])}_{'aligned' if table.aligned else 'any'}"
    registry.kernels(OP, "TritonAdamBuilder").launch(name, (len(table.rows), 1, 1), table.rows, *numbers)


def corrections(op: str, step: int, beta1: float, beta2: float, wanted: bool) -> tuple[float, float]:
    """What the moments, which began at 0, are multiplied by at a step: the first, and the root of the second."""
    if step < 1:
        raise ValueError(f"{op}: step is {step}, expected 1 or more")
    return (1.0 / (1.0 - beta1**step), 1.0 / math.sqrt(1.0 - beta2**step)) if wanted else (1.0, 1.0)


_multi_adam: Any = chunks.define(
    "multi_adam",
    {"params": True, "grads": False, "exp_avgs": True, "exp_avg_sqs": True},
    "int step, float lr, float beta1, float beta2, float eps, float weight_decay,"
    " bool adamw_mode, bool bias_correction, float grad_scale",
    _run,
)
