"""How long does the first `.load()` of CPUAdam take when nothing is built, and what memory does its compiler need?"""

from __future__ import annotations

import statistics

from benchmarks.scratch import Scratch
from opforge.bench.harness import Report

ROUNDS = 4
RIVAL_ROUNDS = 2
OURS, DEEPSPEED, EXTENSION, CEILING = "opforge CPUAdam", "DeepSpeed CPUAdam", "cpp_extension, one pybind file", "ninja"
CHILD = "loading.child_load"


def run(scratch: Scratch) -> Report:
    """Loads in a fresh process with an empty cache for every sample. The slow rivals have fewer rounds."""
    report = Report(
        "the wall time of a cold load in a fresh process after `import torch`, and the peak memory of one compiler",
        f"{CEILING}: the same compiler commands as opforge's build, with ninja alone: no look-up, checks or load",
    )
    ours, bare, rival, extension = [], [], [], []
    memory, rival_memory, extension_memory = [], [], []
    deepspeed_problem = scratch.deepspeed_problem()
    for turn in range(ROUNDS):
        cache = scratch.new_folder("cold")
        ours.append(scratch.run_child(CHILD, "ours", "CPUAdamBuilder", OPFORGE_CACHE_DIR=cache)["load"])
        folder = scratch.new_folder("ninja")
        bare.append(scratch.run_child(CHILD, "bare-ninja", "CPUAdamBuilder", folder)["load"])
        cache = scratch.new_folder("cold")
        build = scratch.run_child(CHILD, "build-only", "CPUAdamBuilder", OPFORGE_CACHE_DIR=cache)
        memory.append(build["children_rss"] / 1e6)
        if turn < RIVAL_ROUNDS and not deepspeed_problem:
            folder = scratch.new_folder("deepspeed")
            load = scratch.run_child(CHILD, "deepspeed", python=scratch.deepspeed, TORCH_EXTENSIONS_DIR=folder)
            rival.append(load["load"])
            rival_memory.append(load["children_rss"] / 1e6)
        if turn == 0:
            # The folder is kept: warm_load and edit_compile_run start from this build.
            load = scratch.run_child(CHILD, "extension", scratch.source("pybind_relu.cpp"), scratch.extensions)
            extension.append(load["load"])
            extension_memory.append(load["children_rss"] / 1e6)
    table = report.table("Cold load", "s", against=(OURS, CEILING))
    table.add(OURS, ours)
    table.add(CEILING, bare, "ceiling")
    table.add(DEEPSPEED, rival)
    table.add(EXTENSION, extension)
    peaks = report.table("Peak memory of one compiler", "MB", statistics=("median", "worst"))
    peaks.add(OURS, memory, "built without torch in the parent")
    peaks.add(DEEPSPEED, rival_memory)
    peaks.add(EXTENSION, extension_memory)
    report.figure("opforge's worst compiler", max(memory), "MB", 400)
    if rival:
        times = statistics.median(rival) / statistics.median(ours)
        report.figure("DeepSpeed's cold load", times, "times opforge's", 20, at_most=False)
    if deepspeed_problem:
        report.left_out.append(deepspeed_problem)
    return report
