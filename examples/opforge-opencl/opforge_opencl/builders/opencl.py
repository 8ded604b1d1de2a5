"""What the builders of OpenCL ops share."""

from __future__ import annotations

from opforge import OpBuilder, kernel_root


@kernel_root("opencl", "opforge_opencl", "csrc")
class OpenCLOpBuilder(OpBuilder):
    """An op for OpenCL devices. Each of its `*.cl` sources is in the library as the text `opforge_cl_<name>`."""

    devices = ("opencl",)
