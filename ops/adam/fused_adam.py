"""Adam and AdamW, fused, on the device of the parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opforge.ops.optimizers.fused_optimizer import FusedOptimizer, Part
from opforge.ops.optimizers.launch import Launch
from opforge.ops.optimizers.list_optimizer import Params


class FusedAdam(FusedOptimizer):
    """Adam (arXiv:1412.6980) and AdamW (arXiv:1711.05101), with one kernel call per step for all parameters of a group.

    Args:
        params: parameters, named parameters, or dicts of parameter groups, as for any torch optimizer.
        lr: learning rate, at least 0; a tensor on the device if `capturable`.
        bias_correction: False does not correct the averages for their start at zero.
        betas: decay rates of the running averages of the gradient and of its square, each in [0, 1).
        eps: added to the square root, at least 0.
        adam_w_mode: True decays the weights themselves (AdamW), False adds the decay to the gradient (Adam).
        weight_decay: at least 0.
        amsgrad: must be False; there is no kernel for it.
        set_grad_none: the default of zero_grad's `set_to_none`.
        capturable, master_weights, fp32_optimizer_states: see FusedOptimizer.
        maximize: maximizes the objective instead of minimizing it.

    All arguments except params and set_grad_none are per-group options. States: "step", "exp_avg" and
    "exp_avg_sq". State dicts can be exchanged with torch.optim.AdamW and torch.optim.Adam. Arithmetic is in float32.
    """

    builder = "FusedAdamBuilder"
    state_names = ("exp_avg", "exp_avg_sq")
    non_negative = ("lr", "eps", "weight_decay")
    amsgrad_advice = "use torch.optim.AdamW for that variant"

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        *,
        capturable: bool = False,
        master_weights: bool = False,
        fp32_optimizer_states: bool = True,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "adamw_mode": adam_w_mode,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "capturable": capturable,
            "master_weights": master_weights,
            "fp32_optimizer_states": fp32_optimizer_states,
            "maximize": maximize,
        }
        super().__init__(params, defaults, set_grad_none)

    def _call(self, op: Any, launch: Launch, part: Part, numbers: dict[str, Any]) -> None:
        group = launch.group
        beta1, beta2 = group["betas"]
        op.fused_adam_(
            self._noop_flag(part.device),
            part.params,
            launch.grads,
            part.states["exp_avg"],
            part.states["exp_avg_sq"],
            part.copies,
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"],
            step=0 if isinstance(launch.step, torch.Tensor) else launch.step,
            adamw_mode=group["adamw_mode"],
            bias_correction=group["bias_correction"],
            weight_decay=group["weight_decay"],
            maximize=group["maximize"],
            **numbers,
        )
