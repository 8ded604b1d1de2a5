"""The builder of FusedAdam's op on the CPU."""

from __future__ import annotations

from opforge.builders.python_functions import OpBuilderWithCalls


class FusedAdamBuilder(OpBuilderWithCalls):
    """Adam and AdamW: fused_adam_, and with DeepSpeed's arguments multi_tensor_adam.

    See opforge.ops.FusedAdam for the optimizer, ops/csrc/fused/adam.cpp for the schema.
    """

    name = "fused_adam"
    sources = ["fused/adam.cpp", "cpu/adam_kernel.cpp", "cpu/optimizer.cpp"]
    calls = {"multi_tensor_adam": "opforge.ops.multi_tensor:multi_tensor_adam"}
    # The vector code calls no libm and reads no floating-point flags, so neither errno nor traps must be kept.
    cxx_flags = ["-fno-math-errno", "-fno-trapping-math"]
