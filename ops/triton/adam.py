"""Adam and AdamW over lists of tensors, in one launch for each mix of dtypes.

`fused_adam_` has the arguments, the arithmetic and the results of the op of that name in `FusedAdamBuilder` (schema:
ops/csrc/fused/adam.cpp): the optimizer opforge.ops.FusedAdam may call either.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from opforge.builders.triton.launching import Kernels
from opforge.builders.triton.optimizers import TritonAdamBuilder, kernel_name

from . import chunks, numbers, registry

OP = TritonAdamBuilder.name


def bind(kernels: Kernels) -> dict[str, Any]:
    """Launch these kernels from now on; gives back the op's functions by name."""
    registry.bind(kernels)
    return {"fused_adam_": fused_adam_}


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
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
    adamw_mode: bool,
    bias_correction: bool,
    weight_decay: float,
    maximize: bool = False,
) -> None:
    """One step of Adam, or of AdamW (`adamw_mode`), over lists of tensors: params, exp_avgs and exp_avg_sqs in place.

    Where `noop_flag` (float32 or int32, one element) is not 0, nothing changes. `copies` is empty, or gets the new
    params in dtypes of their own. `lr_tensor`, `step_tensor` and `grad_scale` (float32, one element) are read on the
    device, in place of `lr`, of `step`, which counts from 1, and of a scale of 1 by which gradients were multiplied.
    Raises ValueError, TypeError, KernelLaunchError.
    """
    rates = numbers.rate(OP, lr, beta1, beta2, step, bias_correction, step_tensor is not None)
    lists = {"params": params, "grads": grads, "exp_avgs": exp_avgs, "exp_avg_sqs": exp_avg_sqs, "copies": copies}
    for table in chunks.tables(OP, lists):
        device = table.rows.device
        on_device = {"lr_tensor": lr_tensor, "step_tensor": step_tensor, "grad_scale": grad_scale}
        registry.kernels(OP, "TritonAdamBuilder").launch(
            kernel_name("update", table.dtypes),
            (len(table.rows), 1, 1),
            table.rows,
            numbers.flag(OP, noop_flag, device),
            *(numbers.address(OP, name, one, device) for name, one in on_device.items()),
            -1.0 if maximize else 1.0,
            0.0 if adamw_mode else weight_decay,
            *numbers.moment(beta1),
            *numbers.moment(beta2),
            weight_decay if adamw_mode else 0.0,
            *rates[0],
            eps,
            *rates[1],
        )


fused_adam_ = registry.function(
    "fused_adam_(Tensor noop_flag, Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[]"
    " exp_avg_sqs, Tensor(d!)[] copies, *, Tensor? lr_tensor=None, Tensor? step_tensor=None, Tensor? grad_scale=None,"
    " float lr, float beta1, float beta2, float eps, int step, bool adamw_mode, bool bias_correction,"
    " float weight_decay, bool maximize=False) -> ()",
    _run,
)
