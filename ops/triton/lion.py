"""Lion over lists of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from opforge.builders.triton.launching import Kernels
from opforge.builders.triton.optimizers import TritonLionBuilder

from . import chunks, registry

OP = TritonLionBuilder.name


def multi_lion(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    *,
    lr: float = 1e-4,
    beta1: float = 0.9,
    beta2: float = 0.99,
    weight_decay: float = 0.0,
    grad_scale: float = 1.0,
) -> None:
    """One step of Lion, in place, over all tensors in one launch.

    Parameters and gradients have one dtype (float32, bfloat16, float16), the moments are float32. Gradients are
    multiplied by `grad_scale` first; -1 maximises. Raises ValueError, TypeError, KernelLaunchError.
    """
    numbers = {"lr": lr, "beta1": beta1, "beta2": beta2, "weight_decay": weight_decay, "grad_scale": grad_scale}
    _multi_lion(params, grads, exp_avgs, **numbers)


def bind(kernels: Kernels) -> dict[str, Any]:
    """Launch these kernels from now on; gives back the op's functions by name."""
    registry.bind(kernels)
    return {"multi_lion": multi_lion}


def _run(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    grad_scale: float,
) -> None:
    lists = {"params": params, "grads": grads, "exp_avgs": exp_avgs}
    chunks.check(OP, lists, ("exp_avgs",))
    if not any(one.numel() for one in params):
        return
    table = chunks.table(list(lists.values()))
    numbers = (grad_scale, 1.0 - lr * weight_decay, beta1, 1.0 - beta1, beta2, 1.0 - beta2, lr)
    name = f"update_{registry.dtype_name(OP, params[0])}_{'aligned' if table.aligned else 'any'}"
    registry.kernels(OP, "TritonLionBuilder").launch(name, (len(table.rows), 1, 1), table.rows, *numbers)


_multi_lion: Any = chunks.define(
    "multi_lion",
    {"params": True, "grads": False, "exp_avgs": True},
    "float lr, float beta1, float beta2, float weight_decay, float grad_scale",
    _run,
)
