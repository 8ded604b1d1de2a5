"""Does a hit take longer when the store holds more?"""

from __future__ import annotations

import os

from benchmarks.scratch import Scratch, only_when_long
from opforge.bench.harness import Report, scaled, take_turns

from .filled_store import fill

SIZES, LONG_SIZES = (10, 1_000, 10_000), (100_000,)
ROUNDS = 200


def run(scratch: Scratch) -> Report:
    """Stores of several sizes in turns in one process, each time with a new builder."""
    from opforge.builders.cpu.adam import CPUAdamBuilder
    from opforge.builders.load_op import find
    from opforge.cache.current_store import open_store
    from opforge.cache.layout import VERSION

    report = Report(
        "the look-up of a cached op (`finder.find`: every check of a hit, without opening the library)",
        f"the same look-up in a store of {SIZES[0]} entries; the other stores hold more entries, of other ops",
    )
    if not scratch.long:
        report.left_out += [only_when_long(f"{size} entries") for size in LONG_SIZES]
    stores = {}
    for size in (*SIZES, *(LONG_SIZES if scratch.long else ())):
        folder = scratch.new_folder("store")
        CPUAdamBuilder().build(store=open_store(folder))
        fill(os.path.join(folder, VERSION), size)
        stores[f"{size} entries"] = open_store(folder)

    def look_up(name: str) -> None:
        entry = find(CPUAdamBuilder().spec(), stores[name]).entry
        if entry is None or entry.origin != "cache":
            raise AssertionError(f"no hit in the store with {name}")

    contenders = {name: lambda name=name: look_up(name) for name in stores}
    take_turns(contenders, 1, pause=1.0)  # until no file is younger than two seconds: such files would be hashed
    samples = take_turns(contenders, ROUNDS, warmup=5)
    names = list(stores)
    table = report.table("A look-up", "ms", against=(names[0],))
    for name, seconds in samples.items():
        table.add(name, scaled(seconds, 1e3))
    report.figure("a look-up among the most", table.ratios(table.rows[-1])[names[0]], "of one among the fewest", 1.2)
    return report
