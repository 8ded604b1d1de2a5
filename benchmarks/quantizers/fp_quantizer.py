"""What does the floating-point quantizer cost on the host, beside a copy of as many bytes?"""

from __future__ import annotations

from benchmarks.harness import Report, ratio, scaled
from benchmarks.scratch import Scratch

COPY = "copy"
CALLS = ("quantize", "dequantize", "quantize, stochastic", "dequantize 1 of 4 blocks")
GOAL = 0.8


def run(scratch: Scratch) -> Report:
    """Returns for each call the speed relative to a copy of as many bytes, which takes turns with it."""
    report = Report(
        "a call on 16 Mi values in groups of 512",
        "torch's copy of as many bytes as the call reads and writes, on the same threads",
    )
    for threads, what in (("1", "processor time of one thread"), ("2", "wall time of two threads")):
        for dtype in ("float32", "bfloat16"):
            for case, calls in scratch.run_child("quantizers.child_fp_quantizer", threads, dtype).items():
                table = report.table(f"{case}, {dtype}, {what}", "ms")
                for name in CALLS:
                    call, copy = calls[name], calls[f"{COPY} for {name}"]
                    table.add(name, scaled(call, 1e3))
                    table.add(f"{COPY} for {name}", scaled(copy, 1e3), "ceiling")
                    goal = GOAL if "stochastic" not in name else None
                    report.figure(f"{name}, {case}, {dtype}, {what}", ratio(copy, call), "of a copy", goal, False)
    return report
