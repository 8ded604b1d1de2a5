"""The builder of CPUAdam's op."""

from __future__ import annotations

from opforge.builders.base import OpBuilder
from opforge.builders.cpu import SPLIT


class CPUAdamBuilder(OpBuilder):
    """Adam on the CPU: create_adam, adam_update, adam_rollback, destroy_adam, and the list form multi_adam_.

    See opforge.ops.CPUAdam for the optimizer, ops/csrc/adam/adam.cpp for the schemas.
    """

    name = "cpu_adam"
    sources = ["adam/adam.cpp", "adam/adam_kernel.cpp", "cpu/split.cpp"]
    # The vector code calls no libm and reads no floating-point flags, so neither errno nor traps must be kept.
    extra_compile_args = ["-fno-math-errno", "-fno-trapping-math"]
    # How elements are shared among threads: ops/csrc/cpu/split.h.
    tunable = SPLIT
