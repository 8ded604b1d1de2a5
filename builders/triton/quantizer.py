"""The builder of group quantisation."""

from __future__ import annotations

from collections.abc import Iterator

from .base import TritonOpBuilder
from .kernels import Kernel
from .rows import DTYPES

GROUPS = ((128, 32, 4), (1024, 4, 4), (8192, 1, 8))
"""(greatest size of a group, groups a program, warps)."""
BLOCK = 1024


def _kernels() -> Iterator[Kernel]:
    for dtype in DTYPES:
        for bits in (8, 4):
            for way, symmetric in (("symmetric", True), ("asymmetric", False)):
                offsets = {} if symmetric else {"offsets": "*fp32"}
                gone = {"offsets": None} if symmetric else {}
                for size, rows, warps in GROUPS:
                    arguments = {"x": f"*{dtype}", "out": "*i8", "scales": "*fp32", **offsets}
                    arguments |= {"groups": "i64", "size": "i32"}
                    constants = {"BITS": bits, "SYMMETRIC": symmetric, "ROWS": rows, "BLOCK": size, **gone}
                    name = f"quantize_{way}_{bits}_{dtype}_{size}"
                    yield Kernel(name, "kernels/quantize.py", "quantize", arguments, constants, warps=warps)
                arguments = {
                    "codes": "*i8",
                    "scales": "*fp32",
                    **offsets,
                    "y": f"*{dtype}",
                    "count": "i64",
                    "size": "i32",
                }
                constants = {"BITS": bits, "SYMMETRIC": symmetric, "BLOCK": BLOCK, **gone}
                yield Kernel(
                    f"dequantize_{way}_{bits}_{dtype}", "kernels/quantize.py", "dequantize", arguments, constants
                )


class TritonQuantizerBuilder(TritonOpBuilder):
    """quantize and dequantize; see opforge.ops.triton.quantizer."""

    name = "triton_quantizer"
    front = "opforge.ops.triton.quantizer"
    kernels = list(_kernels())
