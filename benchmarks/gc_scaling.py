"""What do keeping a store within its limits, and listing it, cost when it holds more?"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from .commands import empty_store
from .harness import Report, Table, ratio, take_turns
from .made_up import fill
from .scratch import Scratch, too_long

if TYPE_CHECKING:
    from opforge.cache.layout import Layout

SIZES, LONG_SIZES = {1_000: 3, 10_000: 1}, {100_000: 1}
"""Entries -> rounds of what reads every manifest."""
WALKS = 5
LATER = 3600.0
"""Seconds after which gc runs, by its own account: entries of the last few seconds would stay."""
OURS, CEILING = "opforge", "ceiling"
READ_ALL = """
import json, os, sys
for one in os.scandir(sys.argv[1]):
    with open(os.path.join(one.path, "manifest.json"), "rb") as file:
        json.load(file)
"""


def run(scratch: Scratch) -> Report:
    """Made-up stores, one size after another; with few rounds, since what is removed is gone."""
    report = Report(
        "the check after each build, `opforge cache ls`, choosing half of all entries to go, removing them",
        "bare Python that asks for each file's size; that parses every manifest, as a process and in this one; that "
        "removes as many entries where they lie",
    )
    if not scratch.long:
        report.left_out += [too_long(f"{size} entries") for size in LONG_SIZES]
    tables = [
        report.table("After a build, within the limits (`bounds.enforce`)", "s"),
        report.table("`opforge cache ls`, the whole process", "s"),
        report.table("Choosing what goes, down to half (`upkeep.over_limit`)", "s"),
        report.table("Removing it (`upkeep.remove`)", "s"),
    ]
    for size, rounds in {**SIZES, **(LONG_SIZES if scratch.long else {})}.items():
        _measure(scratch, report, tables, size, rounds)
    return report


def _measure(scratch: Scratch, report: Report, tables: list[Table], size: int, rounds: int) -> None:
    from opforge.builders.cpu.adam import CPUAdamBuilder
    from opforge.cache.maintenance import gc, limits, listing

    root = scratch.fresh("gc")
    store = empty_store(root)
    began = time.perf_counter()
    CPUAdamBuilder().build(store=store)
    build = time.perf_counter() - began
    layout = store.layout
    shutil.rmtree(layout.path("objects"))  # they would go first, and are looked at as entries are
    fill(layout.path(), size)
    entries = layout.path("entries")
    year, huge = 365 * 24 * 3600.0, 1 << 60

    def check() -> None:
        if limits.enforce(layout, huge, year):
            raise AssertionError("something was evicted within the limits")

    # The first look a day, which is for ages too, is the warm-up's.
    checks = _add(tables[0], size, check, lambda: _walk(entries), WALKS, warmup=1)
    ours = [scratch.script("opforge"), "cache", "ls"]
    bare = [sys.executable, "-c", READ_ALL, entries]
    _add(tables[1], size, lambda: scratch.seconds(ours, OPFORGE_CACHE_DIR=root), lambda: scratch.seconds(bare), rounds)
    half = _walk(entries) // 2
    now = time.time() + LATER
    chosen: list[gc.Eviction] = []

    def choose() -> None:
        chosen[:] = gc.over_limit(layout, now, max_size=half)

    choices = _add(tables[2], size, choose, lambda: _read(entries), rounds)
    gone = [one.path for one in chosen if one.kind == "entry"]
    began = time.perf_counter()
    removed = gc.remove(layout, chosen)
    spent = time.perf_counter() - began
    left = [one.path for one in listing.subfolders(entries)]
    if len(removed) != len(chosen) or any(os.path.exists(path) for path in gone) or len(left) + len(gone) != size:
        raise AssertionError(f"{len(removed)} of {len(chosen)} removed, {len(left)} of {size} entries left")
    as_many = left[: len(gone)]
    began = time.perf_counter()
    _remove(layout, as_many)
    floor = (time.perf_counter() - began) * len(gone) / len(as_many)
    _rows(tables[3], size, {OURS: [spent], CEILING: [floor]})
    report.figure(f"{size} entries: the check after a build", ratio(checks, [build]), "of CPUAdam's cold build", 0.1)
    report.figure(f"{size} entries: gc down to half", min(choices) + spent, "s")
    shutil.rmtree(root)


def _add(
    table: Table, size: int, ours: Callable[[], object], bare: Callable[[], object], rounds: int, warmup: int = 0
) -> list[float]:
    samples = take_turns({OURS: ours, CEILING: bare}, rounds, warmup=warmup)
    _rows(table, size, samples)
    return samples[OURS]


def _rows(table: Table, size: int, samples: dict[str, list[float]]) -> None:
    beside = ratio(samples[OURS], samples[CEILING])
    table.add(f"{size} entries, {OURS}", samples[OURS], f"{beside:.3g} times the ceiling")
    table.add(f"{size} entries, {CEILING}", samples[CEILING])


def _walk(folder: str) -> int:
    """The bytes of all files two levels down."""
    total = 0
    with os.scandir(folder) as found:
        for one in found:
            with os.scandir(one.path) as files:
                total += sum(file.stat(follow_symlinks=False).st_size for file in files)
    return total


def _read(folder: str) -> None:
    """Parse every manifest."""
    with os.scandir(folder) as found:
        for one in found:
            with open(os.path.join(one.path, "manifest.json"), "rb") as file:
                json.load(file)


def _remove(layout: Layout, folders: list[str]) -> None:
    """Remove made-up entries, their tickets and descriptions, with no care for who may be looking."""
    for folder in folders:
        key = os.path.basename(folder)
        for path in (folder, layout.plan(key), layout.description(key)):
            shutil.rmtree(path, ignore_errors=True)
