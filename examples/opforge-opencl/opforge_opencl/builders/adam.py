"""The builder of the Adam step."""

from __future__ import annotations

from .opencl import OpenCLOpBuilder


class OpenCLAdamBuilder(OpenCLOpBuilder):
    """`adam_(param, grad, exp_avg, exp_avg_sq, step, lr, beta1, beta2, eps, weight_decay, device)`: AdamW, in place."""

    name = "opencl_adam"
    sources = ["adam.cpp", "adam.cl"]
