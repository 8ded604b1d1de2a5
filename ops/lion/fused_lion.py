"""Lion, fused, on the device of the parameters."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from opforge.ops.optimizers.fused_optimizer import FusedOptimizer, Part
from opforge.ops.optimizers.launch import Launch
from opforge.ops.optimizers.list_optimizer import Params


class FusedLion(FusedOptimizer):
    """Lion (arXiv:2302.06675), with one kernel call per step for all parameters of a group.

    Args:
        params: parameters, named parameters, or dicts of parameter groups, as for any torch optimizer.
        lr: learning rate, at least 0; a tensor on the device if `capturable`.
        betas: weight of the running average in the step's direction, and decay rate of the average; each in [0, 1).
        weight_decay: decays the weights themselves; at least 0.
        set_grad_none: the default of zero_grad's `set_to_none`.
        capturable, master_weights, fp32_optimizer_states: see FusedOptimizer.
        maximize: maximizes the objective instead of minimizing it.

    All arguments except params and set_grad_none are per-group options. States: "step" and "exp_avg".
    Arithmetic is in float32.
    """

    builder = "FusedLionBuilder"
    state_names = ("exp_avg",)

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
        *,
        capturable: bool = False,
        master_weights: bool = False,
        fp32_optimizer_states: bool = True,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "weight_decay": weight_decay,
            "capturable": capturable,
            "master_weights": master_weights,
            "fp32_optimizer_states": fp32_optimizer_states,
            "maximize": maximize,
        }
        super().__init__(params, defaults, set_grad_none)

    def _call(self, op: Any, launch: Launch, part: Part, numbers: dict[str, Any]) -> None:
        group = launch.group
        beta1, beta2 = group["betas"]
        op.fused_lion_(
            self._noop_flag(part.device),
            part.params,
            launch.grads,
            part.states["exp_avg"],
            part.copies,
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            maximize=group["maximize"],
            **numbers,
        )
