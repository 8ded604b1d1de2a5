"""What the builders of SYCL ops share."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from opforge import OpBuilder, kernel_root


@kernel_root("sycl", "opforge_sycl")
class SYCLOpBuilder(OpBuilder):
    """An op for Intel's devices: its `*.sycl` sources are compiled by icpx, all others by the host's compiler."""

    devices = ("xpu",)
    # What kernel_root gives the class; type checkers want to be told.
    sycl_kernel_path: ClassVar[Callable[[str], str]]
    sycl_kernel_include: ClassVar[Callable[[str], str]]
