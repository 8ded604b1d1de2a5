"""When one source of ten has been edited, how long does the build take, and is one unit all that it compiles?"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from .commands import builder_of, empty_store, one_by_one, steps_of, under_ninja, write_unit
from .harness import Report, ratio
from .scratch import Scratch

if TYPE_CHECKING:
    from opforge import OpBuilder
    from opforge.cache.store import Store

UNITS, COLD_ROUNDS, ROUNDS = 10, 2, 5
COLD, REBUILD, NINJA, CEILING = "opforge, cold", "opforge, one edited", "ninja, by times", "compiler and linker"
KINDS = {"torch-stable": "stable_relu.cpp", "c": "plain_relu.cpp"}
"""ABI -> the small op in csrc/ that its ten units are copies of."""


def run(scratch: Scratch) -> Report:
    """Each edit is another source's and another constant; all build it by turns, ninja in a folder of its own."""
    report = Report(
        f"from an edit of one of an op's {UNITS} sources to its entry (`obtain()`, without opening the library)",
        f"{CEILING}: the commands that compile that one unit and link all, bare; the nine other objects are there",
    )
    for abi, template in KINDS.items():
        _measure(scratch, report, abi, template)
    return report


def _measure(scratch: Scratch, report: Report, abi: str, template: str) -> None:
    folder, bare, incremental = (scratch.fresh(name) for name in ("ten", "bare", "ninja"))
    names = [write_unit(template, folder, number) for number in range(UNITS)]
    name = f"bench_ten_{KINDS[abi].partition('_')[0]}"

    def made() -> OpBuilder:
        return builder_of(name, folder, names, abi)  # anew each time: it remembers nothing

    samples: dict[str, list[float]] = {COLD: [], REBUILD: [], NINJA: [], CEILING: []}
    reused = []
    store = empty_store(scratch.fresh("store"))
    steps = steps_of(made(), store)  # asks the compiler who it is, which all later builds know
    for _ in range(COLD_ROUNDS):
        store = empty_store(scratch.fresh("store"))
        samples[COLD].append(_build(made(), store)[0])
    for place in (bare, incremental):
        under_ninja(place, steps)
    for turn in range(ROUNDS):
        edited = turn % UNITS
        write_unit(template, folder, edited, f"{turn + 2}.0f")
        spent, titles = _build(made(), store)
        compiling = next(step for step in steps if step.unit and step.unit.path == names[edited])
        if compiling.title in titles:
            raise AssertionError(f"{name}: the edited source was not compiled again")
        samples[REBUILD].append(spent)
        reused.append(len(titles))
        samples[NINJA].append(under_ninja(incremental, steps).wall)
        samples[CEILING].append(one_by_one(bare, [compiling, steps[-1]]).wall)
    table = report.table(f"Ten units, {abi}", "s", against=(COLD, CEILING))
    for contender, found in samples.items():
        table.add(contender, found, "ceiling" if contender == CEILING else "")
    beside = statistics.median(samples[REBUILD]) / statistics.median(samples[COLD])
    report.figure(f"{abi}: one edited", beside, "of a cold build")
    report.figure(f"{abi}: one edited", ratio(samples[REBUILD], samples[CEILING]), "times the ceiling")
    report.figure(f"{abi}: objects that a rebuild reuses", min(reused), "", UNITS - 1, at_most=False)


def _build(builder: OpBuilder, store: Store) -> tuple[float, list[str]]:
    """The seconds of one build, and the titles of the steps that it reused. Raises AssertionError for a hit."""
    began = time.perf_counter()
    entry = builder.build(store=store)
    spent = time.perf_counter() - began
    if entry.origin != "built":
        raise AssertionError(f"{builder.name}: {entry.origin} instead of built")
    return spent, entry.manifest()["built"]["reused"]
