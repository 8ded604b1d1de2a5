"""Lion over lists of tensors, in one launch for each mix of dtypes.

`fused_lion_` has the arguments, the arithmetic and the results of the op of that name in `FusedLionBuilder` (schema:
ops/csrc/fused/lion.cpp): the optimizer opforge.ops.FusedLion may call either.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from opforge.builders.triton.launching import Kernels
from opforge.builders.triton.optimizers import TritonLionBuilder, kernel_name

from . import chunks, numbers, registry

OP = TritonLionBuilder.name


def bind(kernels: Kernels) -> dict[str, Any]:
    """Launch these kernels from now on; gives back the op's functions by name."""
    registry.bind(kernels)
    return {"fused_lion_": fused_lion_}


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
    """One step of Lion over lists of tensors: params and exp_avgs in place.

    Where `noop_flag` (float32 or int32, one element) is not 0, nothing changes. `copies` is empty, or gets the new
    params in dtypes of their own. `lr_tensor` and `grad_scale` (float32, one element) are read on the device, in place
    of `lr` and of a scale of 1 by which gradients were multiplied; `step_tensor` is there for the other optimizers'
    callers. Raises ValueError, TypeError, KernelLaunchError.
    """
    lists = {"params": params, "grads": grads, "exp_avgs": exp_avgs, "copies": copies}
    for table in chunks.tables(OP, lists):
        device = table.rows.device
        registry.kernels(OP, "TritonLionBuilder").launch(
            kernel_name("update", table.dtypes),
            (len(table.rows), 1, 1),
            table.rows,
            numbers.flag(OP, noop_flag, device),
            numbers.address(OP, "lr_tensor", lr_tensor, device),
            numbers.address(OP, "grad_scale", grad_scale, device),
            -1.0 if maximize else 1.0,
            *numbers.moment(beta1),
            *numbers.moment(beta2),
            weight_decay,
            lr,
        )


fused_lion_ = registry.function(
    "fused_lion_(Tensor noop_flag, Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] copies, *,"
    " Tensor? lr_tensor=None, Tensor? step_tensor=None, Tensor? grad_scale=None, float lr, float beta1, float beta2,"
    " float weight_decay, bool maximize=False) -> ()",
    _run,
)
