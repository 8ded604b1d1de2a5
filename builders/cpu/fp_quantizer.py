"""The builder of the floating-point quantizer on the CPU."""

from __future__ import annotations

from opforge.builders.base import OpBuilder
from opforge.builders.cpu import SPLIT


class FPQuantizerBuilder(OpBuilder):
    """Quantization to floating-point codes of 12, 8, 6 and 4 bits: quantize, dequantize and others.

    See opforge.ops.fp_quantizer for the functions, ops/csrc/fp_quantizer/fp_quantizer.cpp for the schemas.
    """

    name = "fp_quantizer"
    sources = [
        "fp_quantizer/fp_quantizer.cpp",
        "fp_quantizer/fp_quantizer_kernel.cpp",
        "cpu/split.cpp",
    ]
    python_functions = "opforge.ops.fp_quantizer:functions"
    extra_compile_args = ["-fno-math-errno", "-fno-trapping-math"]
    # How elements are shared among threads: ops/csrc/cpu/split.h.
    tunable = SPLIT
