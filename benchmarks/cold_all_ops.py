"""How long does a process take to build all of the CPU's ops from nothing, and what does its largest compiler need?"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import time
from typing import Any

from .commands import empty_store, steps_of, under_ninja
from .harness import Report
from .scratch import ChildError, Scratch

ROUNDS = 3
OURS, CEILING = "build-ops", "ninja, op by op"


def run(scratch: Scratch) -> Report:
    """Whole processes, each with an empty cache, by turns with their compilers alone."""
    from opforge.builders.cpu import BUILDERS

    report = Report(
        f"`build-ops --json {' '.join(BUILDERS)}` from start to end, with an empty cache",
        f"{CEILING}: the compiler commands of these builds, bare, one op after another; a unit that two ops share once",
    )
    totals, bare, peaks = [], [], []
    ops: dict[str, list[float]] = {name: [] for name in BUILDERS}
    alone: dict[str, list[float]] = {name: [] for name in BUILDERS}
    for _ in range(ROUNDS):
        cache = scratch.fresh("all")
        began = time.perf_counter()
        printed = scratch.output([scratch.script("build-ops"), "--json", *BUILDERS], OPFORGE_CACHE_DIR=cache)
        totals.append(time.perf_counter() - began)
        for one in json.loads(printed)["ops"]:
            if one["state"] != "built":
                raise ChildError(f"build-ops: {one['name']} was {one['state']}, with an empty cache: {one['reason']}")
            ops[one["name"]].append(one["seconds"])
            peaks.append(_built(one["path"])["peak_bytes"] / 1e6)
        spent = _bare(scratch, BUILDERS)
        for name, seconds in spent.items():
            alone[name].append(seconds)
        bare.append(sum(spent.values()))
    table = report.table("All ops", "s", against=(CEILING,))
    table.add(OURS, totals)
    table.add(CEILING, bare, "ceiling")
    parts = report.table("Op by op", "s")
    for name in BUILDERS:
        parts.add(f"{name}, {OURS}", ops[name])
        parts.add(f"{name}, ninja", alone[name], "ceiling")
    report.table("Peak memory of one compiler", "MB", statistics=("median", "worst")).add(OURS, peaks)
    report.figure("all ops, cold", table.ratios(table.rows[0])[CEILING], "times the ceiling")
    report.figure("the largest compiler", max(peaks), "MB", 400)
    return report


def _built(library: str) -> dict[str, Any]:
    with open(os.path.join(os.path.dirname(library), "manifest.json"), encoding="utf-8") as file:
        built: dict[str, Any] = json.load(file)["built"]
    return built


def _bare(scratch: Scratch, builders: dict[str, str]) -> dict[str, float]:
    """Seconds of each op's commands. What an earlier op has compiled by the same command is copied."""
    store = empty_store(scratch.fresh("store"))
    compiled: dict[tuple[str, ...], str] = {}
    spent = {}
    for name, place in builders.items():
        module, _, attribute = place.partition(":")
        steps = steps_of(getattr(importlib.import_module(module), attribute)(), store)
        folder = scratch.fresh("bare")
        for step in steps:
            if step.argv in compiled and step.unit:
                shutil.copy(compiled[step.argv], os.path.join(folder, step.output))
        spent[name] = under_ninja(folder, [one for one in steps if not one.unit or one.argv not in compiled]).wall
        compiled.update({step.argv: os.path.join(folder, step.output) for step in steps if step.unit})
    return spent
