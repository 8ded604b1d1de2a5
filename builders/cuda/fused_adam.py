"""The builder of FusedAdam's op on GPUs."""

from __future__ import annotations

from opforge.builders.cpu import fused_adam


class FusedAdamBuilder(fused_adam.FusedAdamBuilder):
    """The CPU's op of this name with kernels for GPUs: the same functions and schemas."""

    devices = ("cuda", "hip")
    sources = ["adam/fused_adam.cpp", "adam/fused_adam.cu"]
    extra_compile_args = []
    define_macros = [("OPFORGE_GPU", None)]
