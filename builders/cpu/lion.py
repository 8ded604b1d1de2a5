"""The builder of CPULion's op."""

from __future__ import annotations

from opforge.builders.base import OpBuilder
from opforge.builders.cpu import SPLIT


class CPULionBuilder(OpBuilder):
    """Lion on the CPU: create_lion, lion_update, destroy_lion, and the list form multi_lion_.

    See opforge.ops.CPULion for the optimizer, ops/csrc/lion/lion.cpp for the schemas.
    """

    name = "cpu_lion"
    sources = ["lion/lion.cpp", "lion/lion_kernel.cpp", "cpu/split.cpp"]
    # The vector code calls no libm and reads no floating-point flags, so neither errno nor traps must be kept.
    extra_compile_args = ["-fno-math-errno", "-fno-trapping-math"]
    # How elements are shared among threads: ops/csrc/cpu/split.h.
    tunable = SPLIT
