"""What do keeping a store within its limits, and listing it, cost when it holds more?"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.commands import empty_store
from benchmarks.scratch import Scratch, only_when_long
from opforge.bench.harness import Report, Table, ratio, take_turns

from .filled_store import fill

if TYPE_CHECKING:
    from opforge.cache.layout import Layout
    from opforge.cache.maintenance import gc

SIZES, LONG_SIZES = {1_000: 3, 10_000: 1}, {100_000: 1}
"""Entries -> rounds of what reads every record."""
WALKS = 5
LATER = 3600.0
"""Seconds that are added to gc's clock. Otherwise it would keep the entries, which were made a moment ago."""
OURS, CEILING = "opforge", "ceiling"
READ_ALL = """
import json, os, sys
for entry in os.scandir(sys.argv[1]):
    with open(os.path.join(entry.path, "record.json"), "rb") as file:
        json.load(file)
"""


def run(scratch: Scratch) -> Report:
    """Stores of several sizes, one after another. Few rounds, because what is removed is gone."""
    report = Report(
        "the check after each build, `opforge ls`, choosing half of all entries, removing them",
        "bare Python that gets each file's size; that parses every record, as a process and in this one; that "
        "removes as many entries",
    )
    if not scratch.long:
        report.left_out += [only_when_long(f"{size} entries") for size in LONG_SIZES]
    tables = [
        report.table("After a build, within the limits (`limits.enforce`)", "s"),
        report.table("`opforge ls`, the whole process", "s"),
        report.table("Choosing what goes, down to half (`gc.over_limit`)", "s"),
        report.table("Removing it (`gc.remove`)", "s"),
    ]
    for size, rounds in {**SIZES, **(LONG_SIZES if scratch.long else {})}.items():
        _measure(scratch, report, tables, size, rounds)
    return report


def _measure(scratch: Scratch, report: Report, tables: list[Table], size: int, rounds: int) -> None:
    """Adds the samples of a store with `size` entries to each table."""
    from opforge.builders.cpu.adam import CPUAdamBuilder
    from opforge.cache.maintenance import gc, limits

    root = scratch.new_folder("gc")
    store = empty_store(root)
    began = time.perf_counter()
    CPUAdamBuilder().build(store=store)
    build = time.perf_counter() - began
    layout = store.layout
    shutil.rmtree(layout.path("objects"))  # gc would remove them first; it handles them as it handles entries
    fill(layout.path(), size)
    entries = layout.path("entries")
    year, huge = 365 * 24 * 3600.0, 1 << 60

    def check() -> None:
        if limits.enforce(layout, huge, year):
            raise AssertionError("something was evicted within the limits")

    # One warm-up round: the first check of a day looks at ages too.
    checks = _add(tables[0], size, check, lambda: _total_size(entries), WALKS, warmup=1)
    ours = [scratch.script("opforge"), "ls"]
    bare = [sys.executable, "-c", READ_ALL, entries]
    _add(
        tables[1],
        size,
        lambda: scratch.time_command(ours, OPFORGE_CACHE_DIR=root),
        lambda: scratch.time_command(bare),
        rounds,
    )
    half = _total_size(entries) // 2
    now = time.time() + LATER
    chosen: list[gc.Eviction] = []

    def choose() -> None:
        chosen[:] = gc.over_limit(layout, now, max_size=half)

    choices = _add(tables[2], size, choose, lambda: _read_records(entries), rounds)
    removal = _measure_removal(tables[3], layout, size, chosen)
    report.figure(f"{size} entries: the check after a build", ratio(checks, [build]), "of CPUAdam's cold build", 0.1)
    report.figure(f"{size} entries: gc down to half", min(choices) + removal, "s")
    shutil.rmtree(root)


def _measure_removal(table: Table, layout: Layout, size: int, chosen: list[gc.Eviction]) -> float:
    """Removes what gc chose, and as many of the other entries by bare Python. Returns the seconds of the former."""
    from opforge.cache.maintenance import gc, listing

    entries = [item.path for item in chosen if item.kind == "entry"]
    began = time.perf_counter()
    removed = gc.remove(layout, chosen)
    seconds = time.perf_counter() - began
    left = [folder.path for folder in listing.subfolders(layout.path("entries"))]
    remaining = [path for path in entries if os.path.exists(path)]
    if len(removed) != len(chosen) or remaining or len(left) + len(entries) != size:
        raise AssertionError(f"{len(removed)} of {len(chosen)} removed, {len(left)} of {size} entries left")
    others = left[: len(entries)]
    began = time.perf_counter()
    _remove(layout, others)
    floor = (time.perf_counter() - began) * len(entries) / len(others)
    _add_rows(table, size, {OURS: [seconds], CEILING: [floor]})
    return seconds


def _add(
    table: Table, size: int, ours: Callable[[], object], bare: Callable[[], object], rounds: int, warmup: int = 0
) -> list[float]:
    """Times both in turns and adds them to the table. Returns our samples, in seconds."""
    samples = take_turns({OURS: ours, CEILING: bare}, rounds, warmup=warmup)
    _add_rows(table, size, samples)
    return samples[OURS]


def _add_rows(table: Table, size: int, samples: dict[str, list[float]]) -> None:
    times = ratio(samples[OURS], samples[CEILING])
    table.add(f"{size} entries, {OURS}", samples[OURS], f"{times:.3g} times the ceiling")
    table.add(f"{size} entries, {CEILING}", samples[CEILING])


def _total_size(folder: str) -> int:
    """Returns the bytes of all files two levels down."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with os.scandir(entry.path) as files:
                total += sum(file.stat(follow_symlinks=False).st_size for file in files)
    return total


def _read_records(folder: str) -> None:
    """Parses every record."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with open(os.path.join(entry.path, "record.json"), "rb") as file:
                json.load(file)


def _remove(layout: Layout, folders: list[str]) -> None:
    """Removes copied entries and their pointers, without regard for other processes."""
    for folder in folders:
        key = os.path.basename(folder).partition("-")[0]
        for path in (folder, layout.plan(key), layout.description(key)):
            shutil.rmtree(path, ignore_errors=True)
