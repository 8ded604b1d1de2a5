"""The builder of the softmax op."""

from __future__ import annotations

from opforge.builders.triton_op_builder.builder import TritonOpBuilder
from opforge.builders.triton_op_builder.kernel import Kernel
from opforge.builders.triton_op_builder.rows import DTYPES, FORWARD, HEAVY, Size

SIZES = {"forward": FORWARD, "backward": HEAVY}
"""Function -> the row sizes that it has kernels for."""


def _kernel(function: str, dtype: str, size: Size) -> Kernel:
    tensors = ("x", "y") if function == "forward" else ("dy", "y", "dx")
    arguments = dict.fromkeys(tensors, size.pointer(dtype)) | {"columns": size.integer("i32")}
    arguments |= {f"{tensor}_stride": size.integer("i64") for tensor in tensors}
    constants: dict[str, int] = {"ONCE": size.once, "BLOCK": size.block}
    if function == "forward":
        constants["EACH"] = 1 if not size.aligned else 4 if dtype == "fp32" else 8  # values in 16 bytes
    name = f"{function}_{dtype}_{size.name}"
    return Kernel(name, "kernels/softmax.py", function, arguments, constants, warps=size.warps)


class TritonSoftmaxBuilder(TritonOpBuilder):
    """softmax and softmax_backward; see opforge.ops.triton.softmaxes."""

    name = "triton_softmax"
    python_functions = "opforge.ops.triton.softmaxes:bind"
    kernels = [_kernel(way, dtype, size) for dtype in DTYPES for way, sizes in SIZES.items() for size in sizes]
