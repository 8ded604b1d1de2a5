"""How long does a process take to build all of the CPU's ops from nothing, and what does its largest compiler need?"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import time
from typing import Any

from benchmarks.commands import build_steps, empty_store, run_with_ninja
from benchmarks.scratch import ChildError, Scratch
from opforge.bench.harness import Report

ROUNDS = 3
OURS, CEILING = "build-ops", "ninja, op by op"


def run(scratch: Scratch) -> Report:
    """Runs whole processes, each with an empty cache, in turns with their compilers alone."""
    from opforge.builders.cpu import BUILDERS

    report = Report(
        f"`build-ops --json {' '.join(BUILDERS)}` from start to end, with an empty cache",
        f"{CEILING}: the compiler commands of these builds, bare, one op after another; a unit that two ops share once",
    )
    totals, bare, peaks = [], [], []
    ops: dict[str, list[float]] = {name: [] for name in BUILDERS}
    alone: dict[str, list[float]] = {name: [] for name in BUILDERS}
    for _ in range(ROUNDS):
        cache = scratch.new_folder("all")
        began = time.perf_counter()
        output = scratch.output([scratch.script("build-ops"), "--json", *BUILDERS], OPFORGE_CACHE_DIR=cache)
        totals.append(time.perf_counter() - began)
        for op in json.loads(output)["ops"]:
            if op["state"] != "built":
                raise ChildError(f"build-ops: {op['name']} was {op['state']}, with an empty cache: {op['reason']}")
            ops[op["name"]].append(op["seconds"])
            peaks.append(_build_record(op["path"])["peak_bytes"] / 1e6)
        bare_seconds = _run_bare(scratch, BUILDERS)
        for name, seconds in bare_seconds.items():
            alone[name].append(seconds)
        bare.append(sum(bare_seconds.values()))
    table = report.table("All ops", "s", against=(CEILING,))
    table.add(OURS, totals)
    table.add(CEILING, bare, "ceiling")
    op_table = report.table("Op by op", "s")
    for name in BUILDERS:
        op_table.add(f"{name}, {OURS}", ops[name])
        op_table.add(f"{name}, ninja", alone[name], "ceiling")
    report.table("Peak memory of one compiler", "MB", statistics=("median", "worst")).add(OURS, peaks)
    report.figure("all ops, cold", table.ratios(table.rows[0])[CEILING], "times the ceiling")
    report.figure("the largest compiler", max(peaks), "MB", 400)
    return report


def _build_record(library: str) -> dict[str, Any]:
    """Returns what the file beside a library says of its build."""
    with open(os.path.join(os.path.dirname(library), "build.json"), encoding="utf-8") as file:
        build: dict[str, Any] = json.load(file)
    return build


def _run_bare(scratch: Scratch, builders: dict[str, str]) -> dict[str, float]:
    """Returns the seconds of each op's commands. What an earlier op has compiled by the same command is copied."""
    store = empty_store(scratch.new_folder("store"))
    compiled: dict[tuple[str, ...], str] = {}
    seconds = {}
    for name, import_path in builders.items():
        module, _, attribute = import_path.partition(":")
        steps = build_steps(getattr(importlib.import_module(module), attribute)(), store)
        folder = scratch.new_folder("bare")
        for step in steps:
            if step.argv in compiled and step.unit:
                shutil.copy(compiled[step.argv], os.path.join(folder, step.output))
        remaining = [step for step in steps if not step.unit or step.argv not in compiled]
        seconds[name] = run_with_ninja(folder, remaining).wall
        compiled.update({step.argv: os.path.join(folder, step.output) for step in steps if step.unit})
    return seconds
