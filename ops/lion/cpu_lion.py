"""Lion on the CPU."""

from __future__ import annotations

from opforge.ops.host_op import host_op
from opforge.ops.optimizers.cpu_optimizer import CPUOptimizer
from opforge.ops.optimizers.launch import Launch
from opforge.ops.optimizers.list_optimizer import Params


class CPULion(CPUOptimizer):
    """Lion (arXiv:2302.06675), with one kernel call per step for all parameters of a group.

    Args:
        model_params: parameters, named parameters, or dicts of parameter groups, as for any torch optimizer.
        lr: learning rate, at least 0; the paper recommends a third to a tenth of Adam's.
        betas: weight of the running average in the step's direction, and decay rate of the average; each in [0, 1). The
            default is DeepSpeed's; the paper's is (0.9, 0.99).
        weight_decay: decays the weights themselves; at least 0.
        fp32_optimizer_states: False keeps the averages of bfloat16 and float16 parameters in bfloat16.
        maximize: maximizes the objective instead of minimizing it.

    All arguments except model_params are per-group options. States: "step" (int) and "exp_avg". An element moves by the
    sign of its direction: it stays if the direction is 0, and becomes NaN if the direction is NaN. Arithmetic is in
    float32.
    """

    builder = "CPULionBuilder"
    state_names = ("exp_avg",)

    def __init__(
        self,
        model_params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        fp32_optimizer_states: bool = True,
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "weight_decay": weight_decay,
            "fp32_optimizer_states": fp32_optimizer_states,
            "maximize": maximize,
        }
        super().__init__(model_params, defaults)

    def _update(self, launch: Launch) -> None:
        group = launch.group
        beta1, beta2 = group["betas"]
        host_op(self.builder).multi_lion_(
            launch.params,
            launch.grads,
            [state["exp_avg"] for state in launch.states],
            float(group["lr"]),
            beta1,
            beta2,
            group["weight_decay"],
            group["maximize"],
        )
