"""`python -m benchmarks.gpu.roofline`: the least time of each function by the vendors' data sheets. It needs no GPU.

A function cannot be faster than its bytes allow at the memory's bandwidth, nor than its products at the peak. The bytes
are those of opforge.ops.cases.traffic, with which the tests compare what compiled kernels move (tests/support/ptx/). K
and V count once: they are read again for each tile of queries, which the second-level cache serves.
"""

from __future__ import annotations

from typing import NamedTuple

from opforge.ops.cases import traffic


class Sheet(NamedTuple):
    """What a data sheet states."""

    source: str
    bandwidth: float
    """Bytes a second of the memory."""
    peak: float
    """Operations a second of bfloat16 products, dense."""


SHEETS = {
    "A100": Sheet("NVIDIA A100 data sheet, 80 GB SXM", 2.039e12, 312e12),
    "H100": Sheet("NVIDIA H100 data sheet, SXM", 3.35e12, 989.5e12),
    "MI300X": Sheet("AMD Instinct MI300X data sheet", 5.3e12, 1307.4e12),
}


class Work(NamedTuple):
    """What a call must do at least."""

    bytes: float
    operations: float = 0.0
    """Multiplications and additions of matrix products."""


def attention(outer: int, length: int, heads: int, size: int, biases: float = 0.0, share: float = 1.0) -> Work:
    """Returns the work of attention forward in bfloat16, over a share of the keys, with so many bytes of biases."""
    moved = traffic.attention(outer, length, heads, size, ITEM) + biases
    return Work(moved, 4.0 * outer * length * heads * length * size * share)


def microseconds(work: Work, sheet: Sheet) -> float:
    """Returns the least time of a call."""
    return 1e6 * max(work.bytes / sheet.bandwidth, work.operations / sheet.peak)


def rows(function: str) -> Work:
    """Returns the work of a function of ELEMENTS elements in bfloat16."""
    return Work(traffic.TRAFFIC[function].amount(ELEMENTS, ITEM))


ELEMENTS, ITEM = 1 << 26, 2
FUNCTIONS = (
    *("rms_norm", "layer_norm", "rms_pre_norm", "pre_layer_norm", "post_layer_norm", "bias_activation"),
    *("gated_activation", "token_gather", "token_scatter_", "nhwc_bias_add", "nhwc_bias_add_bias_add"),
)
WORKS = {
    "dense attention, 4 x 4096 tokens, 16 heads of 64": attention(4, 4096, 16, 64),
    "Evoformer, 256 rows, 256 tokens, 8 heads of 32": attention(256, 256, 8, 32, 2.0 * (256 * 256 + 8 * 256 * 256)),
    "an eighth of the blocks, 4 x 4096 tokens, 16 heads of 64": attention(4, 4096, 16, 64, share=1 / 8),
    **{f"{function}, 64 Mi elements": rows(function) for function in FUNCTIONS},
    "FPQuantizer, 8 bits, groups of 512, 64 Mi elements": Work(traffic.quantized(ELEMENTS, ITEM, 8, 512)),
    "decoding, 256 sequences of 2048 tokens, 8 heads of 128": Work(traffic.decoding(256 * 2048, 8, 128, ITEM)),
}


def main() -> None:
    """Prints the table."""
    print(f"{'bfloat16, microseconds at least':60}" + "".join(f"{name:>10}" for name in SHEETS))
    for name, work in WORKS.items():
        print(f"{name:60}" + "".join(f"{microseconds(work, sheet):10.1f}" for sheet in SHEETS.values()))
    for name, sheet in SHEETS.items():
        print(f"{name}: {sheet.bandwidth / 1e12} TB/s, {sheet.peak / 1e12} TFLOPS ({sheet.source})")


if __name__ == "__main__":
    main()
