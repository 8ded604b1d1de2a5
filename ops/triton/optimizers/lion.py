"""Lion over lists of tensors, with one launch for each mix of dtypes.

`fused_lion_` has the arguments, the arithmetic and the results of the op of that name in `FusedLionBuilder` (schema:
ops/csrc/lion/fused_lion.cpp), so that the optimizer opforge.ops.FusedLion may call either.
"""

from __future__ import annotations

from torch import Tensor

from opforge.builders.triton.optimizers import TritonLionBuilder, kernel_name
from opforge.ops.triton import registry

from . import chunks, numbers

OP = TritonLionBuilder.name


def _run(
    noop_flag: Tensor,
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    copies: list[Tensor],
    *,
    lr_tensor: Tensor | None = None,
    step_tensor: Tensor | None = None,
    grad_scale: Tensor | None = None,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    maximize: bool = False,
) -> None:
    """Performs one step of Lion on lists of tensors; updates params and exp_avgs in place.

    The arguments are those of `fused_adam_`. `step_tensor` is ignored; it is accepted so that all optimizers can be
    called in the same way. Raises ValueError, TypeError, KernelLaunchError.
    """
    lists = {"params": params, "grads": grads, "exp_avgs": exp_avgs, "copies": copies}
    for table in chunks.tables(OP, lists):
        device = table.rows.device
        registry.kernels_of(TritonLionBuilder).launch(
            kernel_name("update", table.dtypes),
            (len(table.rows), 1, 1),
            table.rows,
            numbers.checked_flag(OP, noop_flag, device),
            numbers.address_of(OP, "lr_tensor", lr_tensor, device),
            numbers.address_of(OP, "grad_scale", grad_scale, device),
            -1.0 if maximize else 1.0,
            *numbers.average_weights(beta1),
            *numbers.average_weights(beta2),
            weight_decay,
            lr,
        )


fused_lion_ = registry.define_inplace(
    "fused_lion_(Tensor noop_flag, Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] copies, *,"
    " Tensor? lr_tensor=None, Tensor? step_tensor=None, Tensor? grad_scale=None, float lr, float beta1, float beta2,"
    " float weight_decay, bool maximize=False) -> ()",
    _run,
)
bind = registry.binding({"fused_lion_": fused_lion_})
