"""The builder of the floating-point quantizer on GPUs."""

from __future__ import annotations

from opforge.builders.cpu import fp_quantizer


class FPQuantizerBuilder(fp_quantizer.FPQuantizerBuilder):
    """The CPU's op of this name with kernels for GPUs: the same functions and schemas."""

    devices = ("cuda", "hip")
    sources = ["fused/fp_quantizer.cpp", "cuda/fp_quantize.cu", "cuda/fp_dequantize.cu", "cpu/optimizer.cpp"]
    extra_compile_args = []
    define_macros = [("OPFORGE_GPU", None)]
