"""The base class of the builders of OpenCL ops."""

from __future__ import annotations

from opforge import OpBuilder, kernel_root


@kernel_root("opencl", "opforge_opencl", "csrc")
class OpenCLOpBuilder(OpBuilder):
    """An op for OpenCL devices. The library contains each `*.cl` source as a text, named `opforge_cl_<name>`."""

    devices = ("opencl",)
