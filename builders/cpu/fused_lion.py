"""The builder of FusedLion's op on the CPU."""

from __future__ import annotations

from opforge.builders.base import OpBuilder


class FusedLionBuilder(OpBuilder):
    """Lion: fused_lion_, and with DeepSpeed's arguments multi_tensor_lion.

    See opforge.ops.FusedLion for the optimizer, ops/csrc/lion/fused_lion.cpp for the schema.
    """

    name = "fused_lion"
    sources = ["lion/fused_lion.cpp", "lion/lion_kernel.cpp", "cpu/split.cpp"]
    python_functions = "opforge.ops.multi_tensor:lion_functions"
    # The vector code calls no libm and reads no floating-point flags, so neither errno nor traps must be kept.
    extra_compile_args = ["-fno-math-errno", "-fno-trapping-math"]
