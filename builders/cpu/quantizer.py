"""The builder of the group quantizer on the CPU."""

from __future__ import annotations

from opforge.builders.base import OpBuilder
from opforge.builders.cpu import SPLIT


class QuantizerBuilder(OpBuilder):
    """Group quantization to 8 and 4 bits: quantize, dequantize, swizzle_quant, quantized_reduction and others.

    See opforge.ops.quantizer for the functions, ops/csrc/quantizer/quantizer.cpp for the schemas.
    """

    name = "quantizer"
    sources = ["quantizer/quantizer.cpp", "quantizer/quantizer_kernel.cpp", "cpu/split.cpp"]
    python_functions = "opforge.ops.quantizer:functions"
    extra_compile_args = ["-fno-math-errno", "-fno-trapping-math"]
    # How elements are shared among threads: ops/csrc/cpu/split.h.
    tunable = SPLIT
