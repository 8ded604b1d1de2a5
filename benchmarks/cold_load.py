"""How long does the first `.load()` of CPUAdam take, with nothing built, and what does its compiler need?"""

from __future__ import annotations

import statistics

from .harness import Report
from .scratch import Scratch

ROUNDS = 4
RIVAL_ROUNDS = 2
OURS, DEEPSPEED, EXTENSION, CEILING = "opforge CPUAdam", "DeepSpeed CPUAdam", "cpp_extension, one pybind file", "ninja"


def run(scratch: Scratch) -> Report:
    """Every sample is a fresh process with a fresh cache; the rivals take so long that they have few rounds."""
    report = Report(
        "the wall time of a cold load in a fresh process after `import torch`, and the peak memory of one compiler",
        f"{CEILING}: the very compiler commands of opforge's build under ninja alone: no look-up, checks, load",
    )
    ours, bare, rival, extension = [], [], [], []
    memory, rival_memory, extension_memory = [], [], []
    no_rival = scratch.no_deepspeed()
    for turn in range(ROUNDS):
        fresh = scratch.fresh("cold")
        ours.append(scratch.child("child_load", "ours", "CPUAdamBuilder", OPFORGE_CACHE_DIR=fresh)["load"])
        folder = scratch.fresh("ninja")
        bare.append(scratch.child("child_load", "bare-ninja", "CPUAdamBuilder", folder)["load"])
        fresh = scratch.fresh("cold")
        memory.append(scratch.child("child_load", "build-only", "CPUAdamBuilder", OPFORGE_CACHE_DIR=fresh))
        if turn < RIVAL_ROUNDS and not no_rival:
            folder = scratch.fresh("deepspeed")
            found = scratch.child("child_load", "deepspeed", python=scratch.deepspeed, TORCH_EXTENSIONS_DIR=folder)
            rival.append(found["load"])
            rival_memory.append(found["children_rss"] / 1e6)
        if turn == 0:
            # Kept: the warm benchmark and the edit begin where this build ends.
            found = scratch.child("child_load", "extension", scratch.source("pybind_relu.cpp"), scratch.extensions)
            extension.append(found["load"])
            extension_memory.append(found["children_rss"] / 1e6)
    table = report.table("Cold load", "s", against=(OURS, CEILING))
    table.add(OURS, ours)
    table.add(CEILING, bare, "ceiling")
    table.add(DEEPSPEED, rival)
    table.add(EXTENSION, extension)
    peaks = report.table("Peak memory of one compiler", "MB", statistics=("median", "worst"))
    peaks.add(OURS, [one["children_rss"] / 1e6 for one in memory], "built without torch in the parent")
    peaks.add(DEEPSPEED, rival_memory)
    peaks.add(EXTENSION, extension_memory)
    report.figure("opforge's worst compiler", max(one["children_rss"] / 1e6 for one in memory), "MB", 400)
    if rival:
        times = statistics.median(rival) / statistics.median(ours)
        report.figure("DeepSpeed's cold load", times, "times opforge's", 20, at_most=False)
    if no_rival:
        report.left_out.append(no_rival)
    return report
