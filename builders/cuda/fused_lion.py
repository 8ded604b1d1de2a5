"""The builder of FusedLion's op on GPUs."""

from __future__ import annotations

from opforge.builders.cpu import fused_lion


class FusedLionBuilder(fused_lion.FusedLionBuilder):
    """The CPU's op of this name with kernels for GPUs: the same functions and schemas."""

    devices = ("cuda", "hip")
    sources = ["lion/fused_lion.cpp", "lion/fused_lion.cu"]
    extra_compile_args = []
    define_macros = [("OPFORGE_GPU", None)]
