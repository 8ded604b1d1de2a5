"""How long does it take to build a Triton op ahead of time: twenty signatures for three targets, without a GPU?"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

from opforge.builders.triton.softmax import TritonSoftmaxBuilder
from opforge.cache.current import open_store

from .commands import empty_store, steps_of, under_ninja
from .harness import Report, scaled
from .scratch import Scratch

ROUNDS = 3
TARGET, SIGNATURES = "cuda:sm_80+sm_90+sm_100", 20
OURS, CEILING = "opforge", "ninja alone"


class TwentyBuilder(TritonSoftmaxBuilder):
    """Softmax in half precision, forward and backward: rows of every size."""

    kernels = [one for one in TritonSoftmaxBuilder.kernels if "fp32" not in one.name][:SIGNATURES]


def run(scratch: Scratch) -> Report:
    """Each round begins with an empty cache; the bare commands of the same build are run by turns with it."""
    report = Report(
        f"{SIGNATURES} signatures for {TARGET}, from nothing to a library that can be loaded",
        f"{CEILING}: the same compiler commands, with nothing before or after them",
    )
    walls, processors, bare = [], [], []
    for _ in range(ROUNDS):
        store = open_store(scratch.fresh("store"))
        before, began = os.times(), time.perf_counter()
        TwentyBuilder(TARGET).build(store=store)
        walls.append(time.perf_counter() - began)
        processors.append(_spent(before))
        spent = under_ninja(scratch.fresh("bare"), steps_of(TwentyBuilder(TARGET), empty_store(scratch.fresh("store"))))
        bare.append(spent.wall)
    table = report.table("Ahead of time", "s", against=(CEILING,))
    table.add(OURS, walls)
    table.add(CEILING, bare, "ceiling")
    report.table("Processor time", "s").add(OURS, processors)
    images = SIGNATURES * len(TARGET.split("+"))
    report.table("Processor time of one image, all included", "ms").add(OURS, scaled(processors, 1e3 / images))
    report.figure("twenty signatures for three targets", statistics.median(walls), "s", 10)
    return report


def _spent(before: Any) -> float:
    """Seconds of all processors since then, in this process and those that it started."""
    now = os.times()
    names = ("user", "system", "children_user", "children_system")
    return sum(getattr(now, name) - getattr(before, name) for name in names)
