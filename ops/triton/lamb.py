"""LAMB over lists of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from opforge.builders.triton.launching import Kernels
from opforge.builders.triton.optimizers import TritonLambBuilder

from . import chunks, registry
from .adam import corrections

OP = TritonLambBuilder.name


def multi_lamb(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    *,
    step: int,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    bias_correction: bool = True,
    grad_scale: float = 1.0,
) -> None:
    """One step of LAMB, in place, over all tensors in three launches; `step` counts from 1. The same inputs give the
    same bits. Needs float32 memory for one more copy of the parameters while it runs.

    Parameters and gradients have one dtype (float32, bfloat16, float16), the moments are float32. Gradients are
    multiplied by `grad_scale` first; -1 maximises. Raises ValueError, TypeError, KernelLaunchError.
    """
    numbers = {"step": step, "lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
    modes = {"bias_correction": bias_correction, "grad_scale": grad_scale}
    _multi_lamb(params, grads, exp_avgs, exp_avg_sqs, **numbers, **modes)


def bind(kernels: Kernels) -> dict[str, Any]:
    """Launch these kernels from now on; gives back the op's functions by name."""
    registry.bind(kernels)
    return {"multi_lamb": multi_lamb}


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
    bias_correction: bool,
    grad_scale: float,
) -> None:
    lists = {"params": params, "grads": grads, "exp_avgs": exp_avgs, "exp_avg_sqs": exp_avg_sqs}
    chunks.check(OP, lists, ("exp_avgs", "exp_avg_sqs"))
    if not any(one.numel() for one in params):
        return
    scales = corrections(OP, step, beta1, beta2, bias_correction)
    directions = _scratch(params)
    table = chunks.table([*lists.values(), directions])
    applied = chunks.table([params, directions], numbered=True)
    sums = torch.empty((len(table.rows), 2), dtype=torch.float32, device=params[0].device)
    ratios = torch.empty(len(params), dtype=torch.float32, device=params[0].device)
    moments = (beta1, 1.0 - beta1, beta2, 1.0 - beta2)
    numbers = (grad_scale, weight_decay, *moments, *scales, eps)
    name = f"{registry.dtype_name(OP, params[0])}_{'aligned' if table.aligned else 'any'}"
    launch, grid = registry.kernels(OP, "TritonLambBuilder").launch, (len(table.rows), 1, 1)
    launch(f"direct_{name}", grid, table.rows, sums, *numbers)
    launch("trust", (len(params), 1, 1), table.spans, sums, ratios)
    launch(f"apply_{name}", grid, applied.rows, ratios, lr)


def _scratch(params: Sequence[Tensor]) -> list[Tensor]:
    """Room for each parameter's direction, in one piece, each beginning at a multiple of 16 bytes."""
    sizes = [-(-one.numel() // 4) * 4 for one in params]
    whole = torch.empty(sum(sizes), dtype=torch.float32, device=params[0].device)
    return [piece[: one.numel()] for piece, one in zip(torch.split(whole, sizes), params, strict=True)]


_multi_lamb: Any = chunks.define(
    "multi_lamb",
    {"params": True, "grads": False, "exp_avgs": True, "exp_avg_sqs": True},
    "int step, float lr, float beta1, float beta2, float eps, float weight_decay,"
    " bool bias_correction, float grad_scale",
    _run,
)
