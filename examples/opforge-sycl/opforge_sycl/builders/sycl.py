"""What the builders of SYCL ops share."""

from __future__ import annotations

from opforge import OpBuilder, kernel_root


@kernel_root("sycl", "opforge_sycl")
class SYCLOpBuilder(OpBuilder):
    """An op for Intel's devices: its `*.sycl` sources are compiled by icpx, all others by the host's compiler."""

    devices = ("xpu",)
