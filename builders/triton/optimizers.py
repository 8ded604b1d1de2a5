"""The builders of the optimizers: Adam, Lion and LAMB over many tensors at once."""

from __future__ import annotations

from collections.abc import Sequence

from .base import TritonOpBuilder
from .kernels import Kernel
from .rows import DTYPES

BLOCK, WARPS = 1024, 4


def _kernels(source: str, function: str, before: Sequence[str], numbers: Sequence[str]) -> list[Kernel]:
    """For each dtype, with wide loads and without. `before` are the pointers that come after the table."""
    found = []
    for dtype, element in zip(DTYPES, ("float32", "float16", "bfloat16"), strict=True):
        for name, aligned in (("aligned", True), ("any", False)):
            arguments = {"table": "*i64", **dict.fromkeys(before, "*fp32"), **dict.fromkeys(numbers, "fp32")}
            constants: dict[str, str | int] = {"DTYPE": f"dtype:{element}", "ALIGNED": aligned, "BLOCK": BLOCK}
            found.append(Kernel(f"{function}_{dtype}_{name}", source, function, arguments, constants, warps=WARPS))
    return found


MOMENTS = ("beta1", "rest1", "beta2", "rest2")


class TritonAdamBuilder(TritonOpBuilder):
    """multi_adam; see opforge.ops.triton.adam."""

    name = "triton_adam"
    front = "opforge.ops.triton.adam"
    kernels = _kernels(
        "kernels/adam.py", "update", (), ("scale", "keep", "decay", *MOMENTS, "step_size", "root", "eps")
    )


class TritonLionBuilder(TritonOpBuilder):
    """multi_lion; see opforge.ops.triton.lion."""

    name = "triton_lion"
    front = "opforge.ops.triton.lion"
    kernels = _kernels("kernels/lion.py", "update", (), ("scale", "keep", *MOMENTS, "lr"))


class TritonLambBuilder(TritonOpBuilder):
    """multi_lamb; see opforge.ops.triton.lamb."""

    name = "triton_lamb"
    front = "opforge.ops.triton.lamb"
    kernels = [
        *_kernels("kernels/lamb.py", "direct", ("sums",), ("scale", "decay", *MOMENTS, "correction", "root", "eps")),
        Kernel(
            "trust", "kernels/lamb.py", "trust", {"spans": "*i64", "sums": "*fp32", "ratios": "*fp32"}, {"BLOCK": 256}
        ),
        *_kernels("kernels/lamb.py", "apply", ("ratios",), ("lr",)),
    ]
