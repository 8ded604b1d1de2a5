"""Does a call of the accelerator cost more than the same call of DeepSpeed's?"""

from __future__ import annotations

import os

from benchmarks.scratch import CHECKOUT, Scratch
from opforge.bench.harness import Report, scaled

ROUNDS, LONG_ROUNDS = 15, 101
CHILD = "accelerator.child_calls"
EMPTY = frozenset(
    """
    device() device(0) set_device(0) current_stream() default_stream() create_graph()
    is_current_stream_capturing()
    """.split()  # noqa: SIM905  # as in the child
)
"""Calls that in DeepSpeed do nothing and return None or False. Here they work: a call in DeepSpeed is one `return`."""
RATIO, DIFFERENCE_US = 1.1, 0.1
"""A call counts as more expensive if it exceeds both: the ratio, and the difference."""


def run(scratch: Scratch) -> Report:
    """Times both accelerators in one process, each call in turns. The best rounds are compared: noise only adds."""
    report = Report(
        "each cheap method of the CPU's accelerator, called again and again in one process",
        "DeepSpeed's CPU accelerator. Many of its methods do nothing, which costs 0.03 us",
    )
    if problem := scratch.deepspeed_problem():
        report.left_out.append(problem)
        return report
    rounds = str(LONG_ROUNDS if scratch.long else ROUNDS)
    source = os.path.join(CHECKOUT, "src")
    result = scratch.run_child(CHILD, rounds, python=scratch.deepspeed, PYTHONPATH=source)
    report.left_out += [f"{name}: no cheap call" for name in result["left_out"]]
    table = report.table("Calls of opforge's accelerator", "us", statistics=("best", "median"))
    slower, emulations = [], []
    for call, (ours, theirs) in result["samples"].items():
        best, limit = min(ours) * 1e6, min(theirs) * 1e6
        table.add(call, scaled(ours, 1e6), f"DeepSpeed {limit:.3f} us: {best / limit:.2f} of it")
        if call in EMPTY:
            emulations.append(best)
        elif best > RATIO * limit and best > limit + DIFFERENCE_US:
            slower.append(f"{call} costs {best:.2f} us, in DeepSpeed {limit:.2f} us")
    report.figure(f"calls over {RATIO} of DeepSpeed's cost, and over {DIFFERENCE_US} us more", len(slower), "", 0)
    report.figure("the dearest of the calls that do nothing in DeepSpeed", max(emulations), "us", 0.5)
    report.notes += slower
    return report
