"""How much processor time does a cold `.load()` of CPUAdam take, compilers included, beside its commands alone?"""

from __future__ import annotations

from benchmarks.scratch import Scratch
from opforge.bench.harness import Report, ratio, scaled

ROUNDS = 7
OURS, OWN, CEILING = "opforge CPUAdam", "of which in Python", "ninja"
CHILD = "loading.child_load"


def run(scratch: Scratch) -> Report:
    """Builds in a fresh process with an empty cache for every sample; `import opforge` is a part of it."""
    report = Report(
        "the processor time of `import opforge` and a cold load in a fresh process after `import torch`, with children",
        f"{CEILING}: the same compiler commands as opforge's build, with ninja alone: no look-up, checks or load",
    )
    ours, own, bare = [], [], []
    for _turn in range(ROUNDS):
        load = scratch.run_child(
            CHILD, "processor-time", "CPUAdamBuilder", OPFORGE_CACHE_DIR=scratch.new_folder("cold")
        )
        ours.append(load["cpu"])
        own.append(load["own"])
        bare.append(scratch.run_child(CHILD, "bare-ninja", "CPUAdamBuilder", scratch.new_folder("ninja"))["cpu"])
    table = report.table("Processor time of a cold load", "ms", against=(CEILING,))
    table.add(OURS, scaled(ours, 1e3))
    table.add(OWN, scaled(own, 1e3))
    table.add(CEILING, scaled(bare, 1e3), "ceiling")
    report.figure("a cold load", ratio(ours, bare), "times its commands by ninja alone", 1.15)
    return report
