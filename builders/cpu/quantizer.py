"""The builder of the group quantizer on the CPU."""

from __future__ import annotations

from opforge.builders.python_functions import OpBuilderWithCalls


class QuantizerBuilder(OpBuilderWithCalls):
    """Group quantization to 8 and 4 bits: quantize, dequantize, swizzle_quant, quantized_reduction and others.

    See opforge.ops.quantizer for the functions, ops/csrc/fused/quantizer.cpp for the schemas.
    """

    name = "quantizer"
    sources = ["fused/quantizer.cpp", "cpu/quantizer_kernel.cpp", "cpu/optimizer.cpp"]
    calls = {
        name: f"opforge.ops.quantizer:{name}"
        for name in (
            "QuantizationType",
            "Symmetric",
            "Asymmetric",
            "quantize",
            "dequantize",
            "dequantize_fp32",
            "dequantize_bf16",
            "swizzle_quant",
            "quantized_reduction",
            "dequantize_int4_to_half_experimental",
            "dequantize_int8_to_half_experimental",
        )
    }
    cxx_flags = ["-fno-math-errno", "-fno-trapping-math"]
