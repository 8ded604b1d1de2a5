"""LAMB, fused, on the device of its parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .checks import check_range
from .fused_optimizer import FusedOptimizer, Part
from .launch import Group, Launch
from .list_optimizer import Params


class FusedLamb(FusedOptimizer):
    """LAMB (arXiv:1904.00962), one call a step for all parameters of a group, in DeepSpeed's form of the rule: the bias
    correction scales the whole step, and each parameter's ratio of norms is held in [min_coeff, max_coeff].

    Args:
        params: parameters, named parameters, or dicts of parameter groups, as for any torch optimizer.
        lr: learning rate, at least 0; a tensor on the device where `capturable`.
        bias_correction: False leaves the averages' start at zero uncorrected.
        betas: decay of the averages of the gradient and of its square, each in [0, 1).
        eps: added to the square root, at least 0; inside of it where `eps_inside_sqrt`.
        weight_decay: part of the direction, at least 0.
        max_grad_norm: 0, or the norm to which all gradients of a group together are clipped.
        max_coeff, min_coeff: bounds of the ratio of norms.
        amsgrad: only False; there is no kernel for it.
        set_grad_none: what zero_grad() does where it is not told.
        capturable, master_weights, fp32_optimizer_states: see FusedOptimizer.
        maximize: climb instead of descend.

    All but params and set_grad_none are per-group options. States: "step", "exp_avg", "exp_avg_sq". Arithmetic is in
    float32; norms are summed in an order that depends on the tensors alone.
    """

    builder = "FusedLambBuilder"
    state_names = ("exp_avg", "exp_avg_sq")
    not_negative = ("lr", "eps", "weight_decay", "max_grad_norm", "min_coeff")
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
        """The ratios of norms of the last step, one for each parameter that had a gradient. Waits for the device."""
        return [ratio for ratios in self._ratios for ratio in ratios.tolist()]

    def _forget(self) -> None:
        super()._forget()
        self._ratios: list[Tensor] = []

    def _launches(self) -> Iterator[Launch]:
        self._ratios = []
        return super()._launches()

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        check_range("FusedLamb", "max_coeff", group["max_coeff"], group["min_coeff"])

    def _call(self, op: Any, launch: Launch, part: Part, numbers: dict[str, Any]) -> None:
        group = launch.group
        beta1, beta2 = group["betas"]
        ratios = torch.ones(len(part.params), device=part.device)
        if group["max_grad_norm"] > 0:
            numbers["grad_scale"] = self._clipping(launch, part.device, numbers.get("grad_scale"))
        op.fused_lamb_(
            self._noop_flag(part.device),
            part.params,
            launch.grads,
            part.states["exp_avg"],
            part.states["exp_avg_sq"],
            part.copies,
            ratios=ratios,
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
        self._ratios.append(ratios)

    @staticmethod
    def _clipping(launch: Launch, device: torch.device, scale: Tensor | None) -> Tensor:
        """What to divide the gradients by, on the device: their scale, and more where their norm is too large."""
        norms = [torch.linalg.vector_norm(grad, dtype=torch.float32).to(device) for grad in launch.grads]
        norm = torch.linalg.vector_norm(torch.stack(norms))
        wanted = float(launch.group["max_grad_norm"])
        given = torch.ones_like(norm) if scale is None else scale
        divisor: Tensor = given * ((norm / given + 1e-6) / wanted).clamp_min(1.0)
        return divisor
