"""The builder of the group quantizer on GPUs."""

from __future__ import annotations

from opforge.builders.cpu import quantizer


class QuantizerBuilder(quantizer.QuantizerBuilder):
    """The CPU's op of this name with kernels for GPUs: the same functions and schemas."""

    devices = ("cuda", "hip")
    sources = ["quantizer/quantizer.cpp", "quantizer/quantize.cu", "quantizer/dequantize.cu"]
    extra_compile_args = []
    define_macros = [("OPFORGE_GPU", None)]
