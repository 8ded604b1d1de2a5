"""The builder of FusedLamb's op on the CPU."""

from __future__ import annotations

from opforge.builders.base import OpBuilder


class FusedLambBuilder(OpBuilder):
    """LAMB: fused_lamb_, and with DeepSpeed's arguments lamb.

    See opforge.ops.FusedLamb for the optimizer, ops/csrc/lamb/fused_lamb.cpp for the schema.
    """

    name = "fused_lamb"
    sources = ["lamb/fused_lamb.cpp", "lamb/lamb_kernel.cpp"]
    python_functions = "opforge.ops.multi_tensor:lamb_functions"
    # The vector code calls no libm and reads no floating-point flags, so neither errno nor traps must be kept.
    extra_compile_args = ["-fno-math-errno", "-fno-trapping-math"]
