"""Adagrad on the CPU."""

from __future__ import annotations

from opforge.ops.host_op import host_op
from opforge.ops.optimizers.cpu_optimizer import CPUOptimizer
from opforge.ops.optimizers.launch import Group, Launch
from opforge.ops.optimizers.list_optimizer import Params


class CPUAdagrad(CPUOptimizer):
    """Adagrad (jmlr.org/papers/v12/duchi11a.html) with one kernel call per step for all parameters of a group.

    Args:
        model_params: parameters, named parameters, or dicts of parameter groups, as for any torch optimizer.
        lr: learning rate, at least 0; step t uses lr / (1 + (t - 1) * lr_decay).
        eps: added to the square root, at least 0.
        weight_decay: multiplied by the weight and added to the gradient; at least 0.
        amsgrad: must be False; accepted for compatibility with DeepSpeed, Adagrad has no such variant.
        fp32_optimizer_states: False keeps the sums of bfloat16 and float16 parameters in bfloat16. That halves their
            memory, but a sum stops growing once the squares are less than 1/512 of it.
        lr_decay, initial_accumulator_value: as in torch.optim.Adagrad; at least 0.
        maximize: maximizes the objective instead of minimizing it.

    All arguments except model_params are per-group options. States: "step" (int) and "sum", as in torch.optim.Adagrad.
    load_state_dict also accepts "exp_avg_sq", DeepSpeed's name for "sum". Arithmetic is in float32; results are rounded
    once, at the end.
    """

    builder = "CPUAdagradBuilder"
    state_names = ("sum",)
    non_negative = ("lr", "eps", "weight_decay", "lr_decay", "initial_accumulator_value")
    amsgrad_advice = "Adagrad has no such variant"
    renamed_states = {"exp_avg_sq": "sum"}

    def __init__(
        self,
        model_params: Params,
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        fp32_optimizer_states: bool = True,
        *,
        lr_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "fp32_optimizer_states": fp32_optimizer_states,
            "lr_decay": lr_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "maximize": maximize,
        }
        super().__init__(model_params, defaults)

    def _initial_value(self, name: str, group: Group) -> float:
        return float(group["initial_accumulator_value"])

    def _update(self, launch: Launch) -> None:
        group = launch.group
        host_op(self.builder).multi_adagrad_(
            launch.params,
            launch.grads,
            [state["sum"] for state in launch.states],
            float(group["lr"]) / (1.0 + (launch.step - 1) * group["lr_decay"]),
            group["eps"],
            group["weight_decay"],
            group["maximize"],
        )
