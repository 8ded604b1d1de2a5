"""Adam and AdamW over lists of tensors, with one launch for each mix of dtypes.

`fused_adam_` has the arguments, the arithmetic and the results of the op of that name in `FusedAdamBuilder` (schema:
ops/csrc/adam/fused_adam.cpp), so that the optimizer opforge.ops.FusedAdam may call either.
"""

from __future__ import annotations

from torch import Tensor

from opforge.builders.triton.optimizers import TritonAdamBuilder, kernel_name
from opforge.ops.triton import registry

from . import chunks, numbers

OP = TritonAdamBuilder.name


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
    """Performs one step of Adam, or of AdamW (`adamw_mode`), on lists of tensors.

    Updates params, exp_avgs and exp_avg_sqs in place. If `noop_flag` (float32 or int32, one element) is not 0, nothing
    changes. `copies` is empty, or holds tensors that receive the new params in dtypes of their own. `step` counts from
    1. `lr_tensor` and `step_tensor` (float32, one element) are read on the device instead of `lr` and `step`.
    `grad_scale` (float32, one element) is read on the device and divides the gradients.

    Raises ValueError, TypeError, KernelLaunchError.
    """
    rates = numbers.step_rates(OP, lr, beta1, beta2, step, bias_correction, step_tensor is not None)
    lists = {"params": params, "grads": grads, "exp_avgs": exp_avgs, "exp_avg_sqs": exp_avg_sqs, "copies": copies}
    numbers_on_device = {"lr_tensor": lr_tensor, "step_tensor": step_tensor, "grad_scale": grad_scale}
    for table in chunks.tables(OP, lists):
        device = table.rows.device
        registry.kernels_of(TritonAdamBuilder).launch(
            kernel_name("update", table.dtypes),
            (len(table.rows), 1, 1),
            table.rows,
            numbers.checked_flag(OP, noop_flag, device),
            *(numbers.address_of(OP, name, tensor, device) for name, tensor in numbers_on_device.items()),
            -1.0 if maximize else 1.0,
            0.0 if adamw_mode else weight_decay,
            *numbers.average_weights(beta1),
            *numbers.average_weights(beta2),
            weight_decay if adamw_mode else 0.0,
            *rates[0],
            eps,
            *rates[1],
        )


fused_adam_ = registry.define_inplace(
    "fused_adam_(Tensor noop_flag, Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[]"
    " exp_avg_sqs, Tensor(d!)[] copies, *, Tensor? lr_tensor=None, Tensor? step_tensor=None, Tensor? grad_scale=None,"
    " float lr, float beta1, float beta2, float eps, int step, bool adamw_mode, bool bias_correction,"
    " float weight_decay, bool maximize=False) -> ()",
    _run,
)
bind = registry.binding({"fused_adam_": fused_adam_})
