"""`python -m benchmarks.gpu.roofline`: the least time of each function by the vendors' data sheets. It needs no GPU.

A function cannot be faster than its bytes allow at the memory's bandwidth, nor than its products at the peak. Bytes are
those of each tensor once, which the tests count in compiled kernels (tests/support/ptx/): K and V are read again for
each tile of queries, which the second-level cache serves.
"""

from __future__ import annotations

from typing import NamedTuple


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
    rows = outer * length * heads
    return Work(2.0 * rows * size * 4 + 4.0 * rows + biases, 4.0 * rows * length * size * share)


def microseconds(work: Work, sheet: Sheet) -> float:
    """Returns the least time of a call."""
    return 1e6 * max(work.bytes / sheet.bandwidth, work.operations / sheet.peak)


ELEMENTS = 1 << 26
WORKS = {
    "dense attention, 4 x 4096 tokens, 16 heads of 64": attention(4, 4096, 16, 64),
    "Evoformer, 256 rows, 256 tokens, 8 heads of 32": attention(256, 256, 8, 32, 2.0 * (256 * 256 + 8 * 256 * 256)),
    "an eighth of the blocks, 4 x 4096 tokens, 16 heads of 64": attention(4, 4096, 16, 64, share=1 / 8),
    "RMS norm, layer norm, gather, scatter: 64 Mi elements": Work(4.0 * ELEMENTS),
    "pre norm with a residual: 64 Mi elements": Work(8.0 * ELEMENTS),
    "post norm with a residual: 64 Mi elements": Work(6.0 * ELEMENTS),
    "gated activation: 64 Mi elements": Work(3.0 * ELEMENTS),
    "FPQuantizer, 8 bits, groups of 512: 64 Mi elements": Work((2 + 1 + 4 / 512) * ELEMENTS),
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
