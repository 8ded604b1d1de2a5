"""`python -m benchmarks.gpu.roofline`: the least time of each case by the vendors' data sheets. It needs no GPU.

A case cannot be faster than its bytes allow at the memory's bandwidth, nor than its operations at the peak of products.
Both are those of the case itself, for its largest size in bfloat16: `Case.amount` and `Case.operations`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from opforge.ops.cases import CASES, Case, load_cases

ITEM = 2
"""Bytes of an element."""
BYTES = "GB/s"
"""The unit of the cases whose amount is bytes; that of a case with operations is too."""


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

    name: str
    bytes: float
    operations: float


def works() -> Iterator[Work]:
    """Yields the work of each case that says what it moves or computes, and is timed in bfloat16."""
    for builder, path in CASES.items():
        for case in load_cases(path):
            if case.sizes and "bfloat16" in case.measured_dtypes and (case.unit == BYTES or case.operations):
                yield work(builder.removesuffix("Builder"), case)


def work(op: str, case: Case) -> Work:
    """Returns the work of a case at its largest size."""
    size = case.sizes[-1]
    operations = case.operations(size) if case.operations else 0.0
    return Work(f"{op}: {case.name}, {size} {case.size_unit}", case.amount(size, ITEM), operations)


def microseconds(work: Work, sheet: Sheet) -> float:
    """Returns the least time of a call."""
    return 1e6 * max(work.bytes / sheet.bandwidth, work.operations / sheet.peak)


def main() -> None:
    """Prints the table."""
    print(f"{'bfloat16, microseconds at least':75}" + "".join(f"{name:>10}" for name in SHEETS))
    for work in works():
        print(f"{work.name:75}" + "".join(f"{microseconds(work, sheet):10.1f}" for sheet in SHEETS.values()))
    for name, sheet in SHEETS.items():
        print(f"{name}: {sheet.bandwidth / 1e12} TB/s, {sheet.peak / 1e12} TFLOPS ({sheet.source})")


if __name__ == "__main__":
    main()
