"""The builder of the row softmax."""

from __future__ import annotations

from .sycl import SYCLOpBuilder


class SYCLSoftmaxBuilder(SYCLOpBuilder):
    """`softmax(x)`: the softmax of each row of the last dimension, on the current stream of an XPU."""

    name = "sycl_softmax"
    sources = [SYCLOpBuilder.sycl_kernel_path("csrc/softmax.cpp"), SYCLOpBuilder.sycl_kernel_path("csrc/softmax.sycl")]
    fakes = {"softmax": lambda x: x.new_empty(x.shape)}
