"""Adam and AdamW on the CPU."""

from __future__ import annotations

from opforge.ops.host_op import host_op
from opforge.ops.optimizers.cpu_optimizer import CPUOptimizer
from opforge.ops.optimizers.launch import Launch
from opforge.ops.optimizers.list_optimizer import Params


class CPUAdam(CPUOptimizer):
    """Adam (arXiv:1412.6980) and AdamW (arXiv:1711.05101), with one kernel call per step for all parameters of a group.

    Args:
        model_params: parameters, named parameters, or dicts of parameter groups, as for any torch optimizer.
        lr: learning rate, at least 0.
        betas: decay rates of the running averages of the gradient and of its square, each in [0, 1).
        eps: added to the square root, at least 0.
        weight_decay: at least 0. The default is 0 (torch.optim.AdamW's is 0.01).
        bias_correction: False does not correct the averages for their start at zero.
        amsgrad: must be False; there is no kernel for it.
        adamw_mode: True decays the weights themselves (AdamW), False adds the decay to the gradient (Adam).
        fp32_optimizer_states: False keeps the states of bfloat16 and float16 parameters in bfloat16. That halves their
            memory, but small changes of the averages are lost. States of float32 parameters are always float32.
        maximize: maximizes the objective instead of minimizing it.

    All arguments except model_params are per-group options. States: "step" (int), "exp_avg" and "exp_avg_sq".
    State dicts can be exchanged with torch.optim.AdamW and torch.optim.Adam. Arithmetic is in float32.
    """

    builder = "CPUAdamBuilder"
    state_names = ("exp_avg", "exp_avg_sq")
    non_negative = ("lr", "eps", "weight_decay")
    amsgrad_advice = "use torch.optim.AdamW for that variant"

    def __init__(
        self,
        model_params: Params,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "amsgrad": amsgrad,
            "adamw_mode": adamw_mode,
            "fp32_optimizer_states": fp32_optimizer_states,
            "maximize": maximize,
        }
        super().__init__(model_params, defaults)

    def _update(self, launch: Launch) -> None:
        group = launch.group
        beta1, beta2 = group["betas"]
        host_op(self.builder).multi_adam_(
            launch.params,
            launch.grads,
            [state["exp_avg"] for state in launch.states],
            [state["exp_avg_sq"] for state in launch.states],
            launch.step,
            float(group["lr"]),
            beta1,
            beta2,
            group["eps"],
            group["weight_decay"],
            group["adamw_mode"],
            group["bias_correction"],
            group["maximize"],
        )
