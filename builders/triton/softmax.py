"""The builder of softmax."""

from __future__ import annotations

from .base import TritonOpBuilder
from .kernels import Kernel
from .rows import DTYPES, FORWARD, Size


def _kernels(dtype: str, size: Size) -> list[Kernel]:
    row, stride, columns = size.pointer(dtype), size.integer("i64"), {"columns": size.integer("i32")}
    constants: dict[str, int] = {"ONCE": size.once, "BLOCK": size.block}
    forward = {"x": row, "y": row, **columns, "x_stride": stride, "y_stride": stride}
    backward = {"dy": row, "y": row, "dx": row, **columns, "dy_stride": stride, "y_stride": stride, "dx_stride": stride}
    return [
        Kernel(
            f"{function}_{dtype}_{size.name}", "kernels/softmax.py", function, arguments, constants, warps=size.warps
        )
        for function, arguments in (("forward", forward), ("backward", backward))
    ]


class TritonSoftmaxBuilder(TritonOpBuilder):
    """softmax and softmax_backward; see opforge.ops.triton.softmaxes."""

    name = "triton_softmax"
    front = "opforge.ops.triton.softmaxes"
    kernels = [kernel for dtype in DTYPES for size in FORWARD for kernel in _kernels(dtype, size)]
