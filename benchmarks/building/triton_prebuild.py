"""How long does it take to build a Triton op ahead of time: twenty signatures for three targets, without a GPU?"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

from benchmarks.commands import build_steps, empty_store, run_with_ninja
from benchmarks.scratch import Scratch
from opforge.bench.harness import Report, scaled
from opforge.builders.triton.softmax import TritonSoftmaxBuilder
from opforge.cache.current_store import open_store

ROUNDS = 3
TARGET, SIGNATURES = "cuda:sm_80+sm_90+sm_100", 20
OURS, CEILING = "opforge", "ninja alone"


class TwentyBuilder(TritonSoftmaxBuilder):
    """Softmax in half precision, forward and backward, for rows of every size."""

    kernels = [kernel for kernel in TritonSoftmaxBuilder.kernels if "fp32" not in kernel.name][:SIGNATURES]


def run(scratch: Scratch) -> Report:
    """Runs rounds that begin with an empty cache, in turns with the bare commands of the same build."""
    report = Report(
        f"{SIGNATURES} signatures for {TARGET}, from nothing to a library that can be loaded",
        f"{CEILING}: the same compiler commands, with nothing before or after them",
    )
    walls, processors, bare = [], [], []
    for _ in range(ROUNDS):
        store = open_store(scratch.new_folder("store"))
        before, began = os.times(), time.perf_counter()
        TwentyBuilder(TARGET).build(store=store)
        walls.append(time.perf_counter() - began)
        processors.append(_processor_seconds(before))
        folder, store = scratch.new_folder("bare"), empty_store(scratch.new_folder("store"))
        bare.append(run_with_ninja(folder, build_steps(TwentyBuilder(TARGET), store)).wall)
    table = report.table("Ahead of time", "s", against=(CEILING,))
    table.add(OURS, walls)
    table.add(CEILING, bare, "ceiling")
    report.table("Processor time", "s").add(OURS, processors)
    images = SIGNATURES * len(TARGET.split("+"))
    report.table("Processor time of one image, all included", "ms").add(OURS, scaled(processors, 1e3 / images))
    report.figure("twenty signatures for three targets", statistics.median(walls), "s", 10)
    return report


def _processor_seconds(before: Any) -> float:
    """Returns the seconds of all processors since `before`, in this process and those that it started."""
    now = os.times()
    names = ("user", "system", "children_user", "children_system")
    return float(sum(getattr(now, name) - getattr(before, name) for name in names))
