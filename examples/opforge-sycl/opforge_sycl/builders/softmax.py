"""The builder of the row softmax."""

from __future__ import annotations

from .sycl import SYCLOpBuilder


class SYCLSoftmaxBuilder(SYCLOpBuilder):
    """`softmax(x)`: the softmax of each row of the last dimension, on the current stream of an XPU."""

    name = "sycl_softmax"
    fakes = {"softmax": lambda x: x.new_empty(x.shape)}

    @property
    def sources(self) -> list[str]:
        return [self.sycl_kernel_path("csrc/softmax.cpp"), self.sycl_kernel_path("csrc/softmax.sycl")]

    @property
    def include_dirs(self) -> list[str]:
        return [self.sycl_kernel_include("csrc/includes")]
