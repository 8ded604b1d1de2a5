"""The builder of the group quantization op."""

from __future__ import annotations

from collections.abc import Iterator

from opforge.builders.triton_op_builder.builder import TritonOpBuilder
from opforge.builders.triton_op_builder.kernel import Kernel
from opforge.builders.triton_op_builder.rows import DTYPES

GROUPS = ((128, 32, 4), (1024, 4, 4), (8192, 1, 8), (16384, 1, 16))
"""(largest group size, groups per program, warps)."""
ANY = GROUPS[1]
"""The same for groups without wide loads."""
LONG = {"aligned": (8192, 16), "any": (1024, 4)}
"""For many longer groups, one program each: the number of values that it reads at once, and its warps."""
PART = 1 << 14
"""For few longer groups: the number of values of a group that one program processes."""
BLOCK = 1024
"""The number of values that such a program reads at once."""
DEQUANTIZE_BLOCK = {"aligned": 4096, "any": 1024}
"""The number of values that one program computes from codes."""
SOURCE = "kernels/quantize.py"
WIDTHS = (("aligned", ":16"), ("any", ""))


def _kernels() -> Iterator[Kernel]:
    """Yields each kernel with wide loads, for groups of a multiple of 16 values, and without, for any groups."""
    for dtype in DTYPES:
        for suffix, wide in WIDTHS:
            arguments = {"x": f"*{dtype}{wide}", "partial": "*fp32", "size": f"i32{wide}"}
            yield Kernel(f"extremes_{dtype}_{suffix}", SOURCE, "extremes", arguments, {"PART": PART, "BLOCK": BLOCK})
        for bits in (8, 4):
            for way, symmetric in (("symmetric", True), ("asymmetric", False)):
                offsets = {} if symmetric else {"offsets": "*fp32"}
                omitted: dict[str, None] = {"offsets": None} if symmetric else {}
                common: dict[str, int | None] = {"BITS": bits, "SYMMETRIC": symmetric, **omitted}
                name = f"{way}_{bits}_{dtype}"
                for (size, rows, warps), wide in (*((group, ":16") for group in GROUPS), (ANY, "")):
                    arguments = {"x": f"*{dtype}{wide}", "out": f"*i8{wide}", "scales": "*fp32", **offsets}
                    arguments |= {"groups": "i64", "size": f"i32{wide}"}
                    constants = {**common, "ROWS": rows, "BLOCK": size}
                    full = f"quantize_{name}_{size if wide else 'any'}"
                    yield Kernel(full, SOURCE, "quantize", arguments, constants, warps=warps)
                for suffix, wide in WIDTHS:
                    arguments = {"x": f"*{dtype}{wide}", "out": f"*i8{wide}", "scales": "*fp32", **offsets}
                    arguments |= {"size": f"i32{wide}"}
                    full, (block, warps) = f"quantize_long_{name}_{suffix}", LONG[suffix]
                    yield Kernel(full, SOURCE, "quantize_long", arguments, {**common, "BLOCK": block}, warps=warps)
                    arguments = {"x": f"*{dtype}{wide}", "out": f"*i8{wide}", "partial": "*fp32", "scales": "*fp32"}
                    arguments |= {**offsets, "size": f"i32{wide}"}
                    constants = {**common, "PART": PART, "BLOCK": BLOCK}
                    yield Kernel(f"encode_{name}_{suffix}", SOURCE, "encode", arguments, constants)
                    arguments = {"codes": f"*i8{wide}", "scales": "*fp32", **offsets, "y": f"*{dtype}{wide}"}
                    arguments |= {"count": f"i64{wide}", "size": f"i32{wide}"}
                    full, block = f"dequantize_{name}_{suffix}", DEQUANTIZE_BLOCK[suffix]
                    # Of float32 a thread writes 16 bytes at a time: more would lie in sectors that others write to.
                    each = (4 if dtype == "fp32" else 16) if wide else 8 // bits
                    yield Kernel(full, SOURCE, "dequantize", arguments, {**common, "EACH": each, "BLOCK": block})


class TritonQuantizerBuilder(TritonOpBuilder):
    """quantize and dequantize; see opforge.ops.triton.quantizer."""

    name = "triton_quantizer"
    python_functions = "opforge.ops.triton.quantizer:bind"
    kernels = list(_kernels())
