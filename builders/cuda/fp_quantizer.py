"""The builder of the floating-point quantizer on GPUs."""

from __future__ import annotations

from opforge.builders.cpu import fp_quantizer


class FPQuantizerBuilder(fp_quantizer.FPQuantizerBuilder):
    """The CPU's op of this name with kernels for GPUs: the same functions and schemas."""

    devices = ("cuda", "hip")
    sources = [
        "fp_quantizer/fp_quantizer.cpp",
        "fp_quantizer/fp_quantize.cu",
        "fp_quantizer/fp_dequantize.cu",
    ]
    extra_compile_args = []
    define_macros = [("OPFORGE_GPU", None)]
