"""The builder of CPUAdam's op."""

from __future__ import annotations

from opforge.builders.base import OpBuilder


class CPUAdamBuilder(OpBuilder):
    """Adam on the CPU: create_adam, adam_update, adam_rollback, destroy_adam, and the list form multi_adam_.

    See opforge.ops.CPUAdam for the optimizer, ops/csrc/cpu/adam.cpp for the schemas.
    """

    name = "cpu_adam"
    sources = ["cpu/adam.cpp", "cpu/adam_kernel.cpp", "cpu/optimizer.cpp"]
    # Vector code calls no libm and reads no flags, so neither errno nor traps need be kept.
    extra_compile_args = ["-fno-math-errno", "-fno-trapping-math"]
