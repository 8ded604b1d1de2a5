"""The builder of FusedLion's op on the CPU."""

from __future__ import annotations

from opforge.builders.python_functions import OpBuilderWithCalls


class FusedLionBuilder(OpBuilderWithCalls):
    """Lion: fused_lion_, and with DeepSpeed's arguments multi_tensor_lion.

    See opforge.ops.FusedLion for the optimizer, ops/csrc/fused/lion.cpp for the schema.
    """

    name = "fused_lion"
    sources = ["fused/lion.cpp", "cpu/lion_kernel.cpp", "cpu/optimizer.cpp"]
    calls = {"multi_tensor_lion": "opforge.ops.multi_tensor:multi_tensor_lion"}
    # The vector code calls no libm and reads no floating-point flags, so neither errno nor traps must be kept.
    cxx_flags = ["-fno-math-errno", "-fno-trapping-math"]
