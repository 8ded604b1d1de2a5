"""LAMB, fused, on the device of the parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opforge.ops.host_op import on_host
from opforge.ops.optimizers.checks import check_range
from opforge.ops.optimizers.fused_optimizer import FusedOptimizer, Part
from opforge.ops.optimizers.launch import Group, Launch
from opforge.ops.optimizers.list_optimizer import Params
from opforge.ops.optimizers.sharding import local_part

ROW = 4096
"""Numbers of a gradient whose squares are summed at once."""


class FusedLamb(FusedOptimizer):
    """LAMB (arXiv:1904.00962) with one call per step for all parameters of a group.

    The rule has DeepSpeed's form: the bias correction scales the whole step, and the ratio of norms of each parameter
    is clamped to [min_coeff, max_coeff].

    Args:
        params: parameters, named parameters, or dicts of parameter groups, as for any torch optimizer.
        lr: learning rate, at least 0; a tensor on the device if `capturable`.
        bias_correction: False does not correct the averages for their start at zero.
        betas: decay rates of the running averages of the gradient and of its square, each in [0, 1).
        eps: added to the square root, at least 0; added under the root if `eps_inside_sqrt`.
        weight_decay: part of the direction, at least 0.
        max_grad_norm: the norm to which all gradients of a group together are clipped; 0 does not clip.
        max_coeff, min_coeff: bounds of the ratio of norms.
        amsgrad: must be False; there is no kernel for it.
        set_grad_none: the default of zero_grad's `set_to_none`.
        capturable, master_weights, fp32_optimizer_states: see FusedOptimizer.
        maximize: maximizes the objective instead of minimizing it.

    All arguments except params and set_grad_none are per-group options. States: "step", "exp_avg" and
    "exp_avg_sq". Arithmetic is in float32; norms are summed in an order that depends only on the tensors.
    """

    builder = "FusedLambBuilder"
    state_names = ("exp_avg", "exp_avg_sq")
    non_negative = ("lr", "eps", "weight_decay", "max_grad_norm", "min_coeff")
    elementwise = False

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        eps_inside_sqrt: bool = False,
        weight_decay: float = 0.0,
        max_grad_norm: float = 0.0,
        max_coeff: float = 10.0,
        min_coeff: float = 0.01,
        amsgrad: bool = False,
        *,
        set_grad_none: bool = True,
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
            "eps_inside_sqrt": eps_inside_sqrt,
            "weight_decay": weight_decay,
            "max_grad_norm": max_grad_norm,
            "max_coeff": max_coeff,
            "min_coeff": min_coeff,
            "amsgrad": amsgrad,
            "capturable": capturable,
            "master_weights": master_weights,
            "fp32_optimizer_states": fp32_optimizer_states,
            "maximize": maximize,
        }
        super().__init__(params, defaults, set_grad_none)

    def get_lamb_coeffs(self) -> list[float]:
        """Returns the ratios of norms of the last step, one per parameter with a gradient, in the parameters' order.

        Waits for the device.
        """
        ratio_of: dict[Tensor, float] = {}
        for params, ratios in self._ratios:
            ratio_of |= dict(zip(params, ratios.tolist(), strict=True))
        return [ratio_of[param] for _, param in self._members() if param in ratio_of]

    def _drop_plans(self) -> None:
        super()._drop_plans()
        self._ratios: list[tuple[list[Tensor], Tensor]] = []

    def _launches(self) -> Iterator[Launch]:
        self._ratios = []
        return super()._launches()

    def _update_part(self, device: torch.device, launch: Launch) -> None:
        self._part_ratios = torch.ones(len(launch.params), dtype=torch.float32, device=device)
        super()._update_part(device, launch)
        self._ratios.append((launch.params, self._part_ratios))

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        check_range("FusedLamb", "max_coeff", group["max_coeff"], group["min_coeff"])

    def _call(self, op: Any, launch: Launch, part: Part, numbers: dict[str, Any]) -> None:
        group = launch.group
        beta1, beta2 = group["betas"]
        if group["max_grad_norm"] > 0:
            numbers["grad_scale"] = self._gradient_divisor(group, part.device, numbers.get("grad_scale"))
        op.fused_lamb_(
            self._noop_flag(part.device),
            part.params,
            launch.grads,
            part.states["exp_avg"],
            part.states["exp_avg_sq"],
            part.copies,
            ratios=self._part_ratios,
            beta1=beta1,
            beta2=beta2,
            max_coeff=group["max_coeff"],
            min_coeff=group["min_coeff"],
            eps=group["eps"],
            scale=1.0,
            step=0 if isinstance(launch.step, torch.Tensor) else launch.step,
            eps_inside_sqrt=group["eps_inside_sqrt"],
            bias_correction=group["bias_correction"],
            weight_decay=group["weight_decay"],
            maximize=group["maximize"],
            **numbers,
        )

    @staticmethod
    def _gradient_divisor(group: Group, device: torch.device, grad_scale: Tensor | None) -> Tensor:
        """Returns the divisor of the gradients, on the device: their scale, and more if their norm is too large.

        The norm is that of the whole group, of which a call may have a part: some parameters have master weights.
        """
        grads = [local_part(param.grad).flatten() for param in group["params"] if param.grad is not None]
        norms = []
        for grad in grads:
            # On the CPU torch's sum of one long row loses digits: 0.5 % of the norm of 64 Mi random numbers.
            whole = grad.numel() // ROW * ROW if on_host(grad) else 0
            parts = (grad[:whole].view(-1, ROW), grad[whole:].view(1, -1))
            norms += [torch.linalg.vector_norm(rows, dim=1, dtype=torch.float32).to(device) for rows in parts]
        norm = torch.linalg.vector_norm(torch.cat(norms))
        largest = float(group["max_grad_norm"])
        scale = torch.ones_like(norm) if grad_scale is None else grad_scale
        divisor: Tensor = scale * ((norm / scale + 1e-6) / largest).clamp_min(1.0)
        return divisor
