"""The builder of the floating-point quantizer on the CPU."""

from __future__ import annotations

from opforge.builders.base import OpBuilder


class FPQuantizerBuilder(OpBuilder):
    """Quantization to floating-point codes of 12, 8, 6 and 4 bits: quantize, dequantize and others.

    See opforge.ops.fp_quantizer for the functions, ops/csrc/fp_quantizer/fp_quantizer.cpp for the schemas.
    """

    name = "fp_quantizer"
    sources = ["fp_quantizer/fp_quantizer.cpp", "fp_quantizer/fp_quantizer_kernel.cpp", "cpu/optimizer.cpp"]
    python_functions = "opforge.ops.fp_quantizer:functions"
    extra_compile_args = ["-fno-math-errno", "-fno-trapping-math"]
