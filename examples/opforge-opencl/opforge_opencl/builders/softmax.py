"""The builder of the row softmax."""

from __future__ import annotations

from .opencl import OpenCLOpBuilder


class OpenCLSoftmaxBuilder(OpenCLOpBuilder):
    """`softmax(x, device)`: the softmax of each row of the last dimension."""

    name = "opencl_softmax"
    sources = ["softmax.cpp", "softmax.cl"]
    fakes = {"softmax": lambda x, device: x.new_empty(x.shape)}
