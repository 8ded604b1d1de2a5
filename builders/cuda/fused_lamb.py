"""The builder of FusedLamb's op on GPUs."""

from __future__ import annotations

from opforge.builders.cpu import fused_lamb


class FusedLambBuilder(fused_lamb.FusedLambBuilder):
    """The CPU's op of this name with kernels for GPUs: the same functions and schemas."""

    devices = ("cuda", "hip")
    sources = ["lamb/fused_lamb.cpp", "lamb/fused_lamb.cu"]
    extra_compile_args = []
    define_macros = [("OPFORGE_GPU", None)]
