"""The builder of FusedAdam's op on the CPU."""

from __future__ import annotations

from opforge.builders.base import OpBuilder


class FusedAdamBuilder(OpBuilder):
    """Adam and AdamW: fused_adam_, and with DeepSpeed's arguments multi_tensor_adam.

    See opforge.ops.FusedAdam for the optimizer, ops/csrc/adam/fused_adam.cpp for the schema.
    """

    name = "fused_adam"
    sources = ["adam/fused_adam.cpp", "adam/adam_kernel.cpp", "cpu/split.cpp"]
    python_functions = "opforge.ops.multi_tensor:adam_functions"
    # The vector code calls no libm and reads no floating-point flags, so neither errno nor traps must be kept.
    extra_compile_args = ["-fno-math-errno", "-fno-trapping-math"]
