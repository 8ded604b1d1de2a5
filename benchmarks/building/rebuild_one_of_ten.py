"""How long does a build take after an edit of one source of ten, and does it compile one unit only?"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from benchmarks.commands import build_steps, empty_store, make_builder, run_in_order, run_with_ninja, write_unit
from benchmarks.scratch import Scratch
from opforge.bench.harness import Report, ratio

if TYPE_CHECKING:
    from opforge import OpBuilder
    from opforge.cache.store import Store

UNITS, COLD_ROUNDS, ROUNDS = 10, 2, 5
COLD, REBUILD, NINJA, CEILING = "opforge, cold", "opforge, one edited", "ninja, by times", "compiler and linker"
TEMPLATES = {"torch-stable": "stable_relu.cpp", "c": "plain_relu.cpp"}
"""ABI -> the op in csrc/ that the ten units are copies of."""


def run(scratch: Scratch) -> Report:
    """Edits another source each round, and builds with each contender in turn, in its own folder."""
    report = Report(
        f"from an edit of one of an op's {UNITS} sources to its entry (`build()`, without opening the library)",
        f"{CEILING}: the commands that compile that one unit and link all, bare; the nine other objects are there",
    )
    for abi, template in TEMPLATES.items():
        _measure(scratch, report, abi, template)
    return report


def _measure(scratch: Scratch, report: Report, abi: str, template: str) -> None:
    folder, bare, incremental = (scratch.new_folder(name) for name in ("ten", "bare", "ninja"))
    names = [write_unit(template, folder, number) for number in range(UNITS)]
    name = f"bench_ten_{template.partition('_')[0]}"

    def new_builder() -> OpBuilder:
        return make_builder(name, folder, names, abi)  # a new one for each build: it has no state of an earlier one

    samples: dict[str, list[float]] = {COLD: [], REBUILD: [], NINJA: [], CEILING: []}
    reused = []
    store = empty_store(scratch.new_folder("store"))
    steps = build_steps(new_builder(), store)  # probes the compiler, which no later build of this process repeats
    for _ in range(COLD_ROUNDS):
        store = empty_store(scratch.new_folder("store"))
        samples[COLD].append(_build(new_builder(), store)[0])
    for path in (bare, incremental):
        run_with_ninja(path, steps)
    for turn in range(ROUNDS):
        edited = turn % UNITS
        write_unit(template, folder, edited, f"{turn + 2}.0f")
        seconds, titles = _build(new_builder(), store)
        compiling = next(step for step in steps if step.unit and step.unit.path == names[edited])
        if compiling.title in titles:
            raise AssertionError(f"{name}: the edited source was not compiled again")
        samples[REBUILD].append(seconds)
        reused.append(len(titles))
        samples[NINJA].append(run_with_ninja(incremental, steps).wall)
        samples[CEILING].append(run_in_order(bare, [compiling, steps[-1]]).wall)
    table = report.table(f"Ten units, {abi}", "s", against=(COLD, CEILING))
    for contender, times in samples.items():
        table.add(contender, times, "ceiling" if contender == CEILING else "")
    share = statistics.median(samples[REBUILD]) / statistics.median(samples[COLD])
    report.figure(f"{abi}: one edited", share, "of a cold build")
    report.figure(f"{abi}: one edited", ratio(samples[REBUILD], samples[CEILING]), "times the ceiling")
    report.figure(f"{abi}: objects that a rebuild reuses", min(reused), "", UNITS - 1, at_most=False)


def _build(builder: OpBuilder, store: Store) -> tuple[float, list[str]]:
    """Returns the seconds of one build, and the titles of the steps that it reused.

    Raises:
        AssertionError: Nothing was built.
    """
    began = time.perf_counter()
    entry = builder.build(store=store)
    seconds = time.perf_counter() - began
    if entry.origin != "built":
        raise AssertionError(f"{builder.name}: origin is {entry.origin!r}, expected 'built'")
    return seconds, entry.build()["reused"]
