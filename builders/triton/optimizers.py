"""The builders of the optimizers' ops: Adam, Lion and LAMB over many tensors at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from opforge.builders.triton_op_builder.builder import TritonOpBuilder
from opforge.builders.triton_op_builder.kernel import Kernel

BLOCK, WARPS = 1024, 4
ELEMENTS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""A dtype's name in signatures -> its name in Triton. The order is that of the codes in a table's rows."""


class Dtypes(NamedTuple):
    """The dtypes of tensors that are updated together. `copy` is "none" if there is no list of copies."""

    param: str
    grad: str
    state: str
    copy: str


ANY = Dtypes("any", "any", "any", "any")
"""Every mix of dtypes at every address. Slower, because the kernel looks the dtypes up while it runs."""
SIGNATURES = (
    Dtypes("fp32", "fp32", "fp32", "none"),
    *(
        dtypes
        for low in ("bf16", "fp16")
        for dtypes in (
            Dtypes(low, low, "fp32", "none"),
            Dtypes(low, low, "bf16", "none"),
            Dtypes("fp32", low, "fp32", low),  # master weights
            Dtypes("fp32", low, "bf16", low),
            Dtypes("fp32", "fp32", "fp32", low),
        )
    ),
)
"""The mixes with wide loads: those of opforge.ops.FusedAdam, FusedLion and FusedLamb, and DeepSpeed's with copies."""
USES = {
    "update": ("param", "grad", "state", "copy"),
    "accumulate": ("param", "grad", "state"),
    "descend": ("param", "state", "copy"),
}
"""A kernel's function -> the dtypes that it is compiled for."""


def kernel_name(function: str, dtypes: Dtypes) -> str:
    """Returns the name of the kernel of a function for these dtypes."""
    return "_".join((function, *(["any"] if dtypes == ANY else [getattr(dtypes, field) for field in USES[function]])))


def _constant(dtype: str) -> str | None:
    if dtype == "none":
        return None
    return dtype if dtype == "any" else f"dtype:{ELEMENTS[dtype]}"


def _kernels(
    source: str, function: str, pointers: Sequence[str], addresses: Sequence[str], numbers: Sequence[str]
) -> list[Kernel]:
    arguments = {"table": "*i64", "noop": "*i32", **dict.fromkeys(pointers, "*fp32")}
    arguments |= {**dict.fromkeys(addresses, "i64"), **dict.fromkeys(numbers, "fp32")}
    kernels = {}
    for dtypes in (*SIGNATURES, ANY):
        name = kernel_name(function, dtypes)
        constants = {field.upper(): _constant(getattr(dtypes, field)) for field in USES[function]}
        kernels[name] = Kernel(name, source, function, arguments, {**constants, "BLOCK": BLOCK}, warps=WARPS)
    return list(kernels.values())


MOMENTS = ("weight1", "factor1", "weight2", "factor2")
COUNTED = ("lr", "step", "log_beta1", "log_beta2")


class TritonAdamBuilder(TritonOpBuilder):
    """fused_adam_; see opforge.ops.triton.optimizers.adam."""

    name = "triton_adam"
    python_functions = "opforge.ops.triton.optimizers.adam:bind"
    kernels = _kernels(
        "kernels/adam.py",
        "update",
        (),
        ("lr_at", "step_at", "scale_at"),
        ("sign", "l2", *MOMENTS, "decay", "rate", "root", "eps", *COUNTED),
    )


class TritonLionBuilder(TritonOpBuilder):
    """fused_lion_; see opforge.ops.triton.optimizers.lion."""

    name = "triton_lion"
    python_functions = "opforge.ops.triton.optimizers.lion:bind"
    kernels = _kernels("kernels/lion.py", "update", (), ("lr_at", "scale_at"), ("sign", *MOMENTS, "decay", "lr"))


class TritonLambBuilder(TritonOpBuilder):
    """fused_lamb_; see opforge.ops.triton.optimizers.lamb."""

    name = "triton_lamb"
    python_functions = "opforge.ops.triton.optimizers.lamb:bind"
    kernels = [
        *_kernels(
            "kernels/lamb.py",
            "accumulate",
            ("sums",),
            ("scale_at",),
            ("sign", "decay", *MOMENTS, "inside", "outside"),
        ),
        Kernel(
            "trust",
            "kernels/lamb.py",
            "trust",
            {
                "spans": "*i64",
                "noop": "*i32",
                "sums": "*fp32",
                "ratios": "*fp32",
                "smallest": "fp32",
                "largest": "fp32",
            },
            {"BLOCK": 256},
        ),
        *_kernels(
            "kernels/lamb.py",
            "descend",
            ("ratios",),
            ("lr_at", "step_at"),
            ("decay", "inside", "outside", "rate", *COUNTED),
        ),
    ]
