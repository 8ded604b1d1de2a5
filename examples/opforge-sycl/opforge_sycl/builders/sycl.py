"""The base class of the builders of SYCL ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from opforge import OpBuilder, kernel_root


@kernel_root("sycl", "opforge_sycl")
class SYCLOpBuilder(OpBuilder):
    """An op for Intel's devices. icpx compiles its `*.sycl` sources, and the host's compiler all others."""

    devices = ("xpu",)
    # Added by kernel_root; declared for type checkers.
    sycl_kernel_path: ClassVar[Callable[[str], str]]
    sycl_kernel_include: ClassVar[Callable[[str], str]]
