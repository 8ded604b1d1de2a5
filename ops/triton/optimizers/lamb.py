"""LAMB over lists of tensors, with three launches for each mix of dtypes. The same inputs give the same bits.

`fused_lamb_` has the arguments, the arithmetic and the results of the op of that name in `FusedLambBuilder` (schema:
ops/csrc/lamb/fused_lamb.cpp), so that the optimizer opforge.ops.FusedLamb may call either.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opforge.builders.triton.optimizers import TritonLambBuilder, kernel_name
from opforge.ops.triton import registry

from . import chunks, numbers

OP = TritonLambBuilder.name


def _run(
    noop_flag: Tensor,
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    copies: list[Tensor],
    *,
    lr_tensor: Tensor | None = None,
    step_tensor: Tensor | None = None,
    grad_scale: Tensor | None = None,
    ratios: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    max_coeff: float,
    min_coeff: float,
    eps: float,
    scale: float,
    step: int,
    eps_inside_sqrt: bool,
    bias_correction: bool,
    weight_decay: float,
    maximize: bool = False,
) -> None:
    """Performs one step of LAMB on lists of tensors; updates params, exp_avgs and exp_avg_sqs in place.

    The step of each parameter is multiplied by the ratio of the parameter's norm to the direction's norm, clamped to
    [`min_coeff`, `max_coeff`]. The ratios are written to `ratios` (float32, one element per parameter). Gradients are
    divided by `scale`. The other arguments are those of `fused_adam_`. Raises ValueError, TypeError, KernelLaunchError.
    """
    lists = {"params": params, "grads": grads, "exp_avgs": exp_avgs, "exp_avg_sqs": exp_avg_sqs, "copies": copies}
    rates = numbers.step_rates(OP, lr, beta1, beta2, step, bias_correction, step_tensor is not None)
    tables = chunks.tables(OP, lists)
    if tables:
        _check_ratios(ratios, params)
    sign = (-1.0 if maximize else 1.0) / scale
    rule = (weight_decay, *((eps, 0.0) if eps_inside_sqrt else (0.0, eps)))
    for table in tables:
        device, grid = table.rows.device, (len(table.rows), 1, 1)
        flag = numbers.checked_flag(OP, noop_flag, device)
        lr_at = numbers.address_of(OP, "lr_tensor", lr_tensor, device)
        step_at = numbers.address_of(OP, "step_tensor", step_tensor, device)
        scale_at = numbers.address_of(OP, "grad_scale", grad_scale, device)
        sums = torch.empty((len(table.rows), 2), dtype=torch.float32, device=device)
        moments = (*numbers.average_weights(beta1), *numbers.average_weights(beta2))
        launch = registry.kernels_of(TritonLambBuilder).launch
        accumulate, descend = (kernel_name(function, table.dtypes) for function in ("accumulate", "descend"))
        launch(accumulate, grid, table.rows, flag, sums, scale_at, sign, rule[0], *moments, *rule[1:])
        launch("trust", (len(table.spans), 1, 1), table.spans, flag, sums, ratios, min_coeff, max_coeff)
        launch(descend, grid, table.rows, flag, ratios, lr_at, step_at, *rule, rates[0][0], *rates[1])


def _check_ratios(ratios: Tensor, params: list[Tensor]) -> None:
    is_valid = ratios.dtype == torch.float32 and ratios.is_contiguous() and ratios.device == params[0].device
    if not is_valid or ratios.numel() != len(params):
        raise ValueError(
            f"{OP}: ratios has {ratios.numel()} elements and is {ratios.dtype} on {ratios.device}, expected a"
            f" contiguous float32 tensor of {len(params)} on {params[0].device}: one element for each parameter"
        )


fused_lamb_ = registry.define_inplace(
    "fused_lamb_(Tensor noop_flag, Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[]"
    " exp_avg_sqs, Tensor(d!)[] copies, *, Tensor? lr_tensor=None, Tensor? step_tensor=None, Tensor? grad_scale=None,"
    " Tensor(e!) ratios, float lr, float beta1, float beta2, float max_coeff, float min_coeff, float eps, float scale,"
    " int step, bool eps_inside_sqrt, bool bias_correction, float weight_decay, bool maximize=False) -> ()",
    _run,
)
bind = registry.binding({"fused_lamb_": fused_lamb_})
