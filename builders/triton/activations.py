"""The builders of the GELU and SwiGLU ops."""

from __future__ import annotations

from collections.abc import Iterator

from opforge.builders.triton_op_builder.builder import TritonOpBuilder
from opforge.builders.triton_op_builder.kernel import Kernel
from opforge.builders.triton_op_builder.rows import DTYPES, Size

from .configs import by_constant

BLOCK, WARPS = 1024, 4
CONFIGS = tuple(by_constant("BLOCK", BLOCK, WARPS))
SIZES = (Size("aligned", BLOCK, WARPS, False, True), Size("any", BLOCK, WARPS, False, False))


def _gelu() -> Iterator[Kernel]:
    for dtype in DTYPES:
        for size in SIZES:
            row = size.pointer(dtype)
            for form in ("erf", "tanh"):
                constants: dict[str, int] = {"TANH": form == "tanh", "BLOCK": BLOCK}
                forward = {"x": row, "y": row, "count": "i64"}
                backward = {"dy": row, "x": row, "dx": row, "count": "i64"}
                for way, arguments in (("forward", forward), ("backward", backward)):
                    name = f"{way}_{form}_{dtype}_{size.name}"
                    yield Kernel(name, "kernels/activation.py", f"gelu_{way}", arguments, constants, configs=CONFIGS)


def _swiglu() -> Iterator[Kernel]:
    for dtype in DTYPES:
        for size in SIZES:
            for way, tensors in (("forward", ("gate", "up", "y")), ("backward", ("dy", "gate", "up", "dgate", "dup"))):
                arguments = dict.fromkeys(tensors, size.pointer(dtype)) | {"columns": size.integer("i32")}
                arguments |= {f"{tensor}_stride": size.integer("i64") for tensor in tensors}
                name = f"{way}_{dtype}_{size.name}"
                constants = {"BLOCK": BLOCK}
                yield Kernel(name, "kernels/activation.py", f"swiglu_{way}", arguments, constants, configs=CONFIGS)


class TritonGeluBuilder(TritonOpBuilder):
    """gelu and gelu_backward; see opforge.ops.triton.activations."""

    name = "triton_gelu"
    python_functions = "opforge.ops.triton.activations:bind_gelu"
    compiles_configs = False
    cases = "opforge.ops.cases.triton_ops:GELU"
    kernels = list(_gelu())


class TritonSwigluBuilder(TritonOpBuilder):
    """swiglu and swiglu_backward; see opforge.ops.triton.activations."""

    name = "triton_swiglu"
    python_functions = "opforge.ops.triton.activations:bind_swiglu"
    compiles_configs = False
    cases = "opforge.ops.cases.triton_ops:SWIGLU"
    kernels = list(_swiglu())
