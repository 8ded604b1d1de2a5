"""The builder of CPUAdagrad's op."""

from __future__ import annotations

from opforge.builders.base import OpBuilder
from opforge.builders.cpu import SPLIT


class CPUAdagradBuilder(OpBuilder):
    """Adagrad on the CPU: create_adagrad, adagrad_update, destroy_adagrad, and the list form multi_adagrad_.

    See opforge.ops.CPUAdagrad for the optimizer, ops/csrc/adagrad/adagrad.cpp for the schemas.
    """

    name = "cpu_adagrad"
    sources = ["adagrad/adagrad.cpp", "adagrad/adagrad_kernel.cpp", "cpu/split.cpp"]
    # The vector code calls no libm and reads no floating-point flags, so neither errno nor traps must be kept.
    extra_compile_args = ["-fno-math-errno", "-fno-trapping-math"]
    # How elements are shared among threads: ops/csrc/cpu/split.h.
    tunable = SPLIT
