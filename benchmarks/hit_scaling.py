"""Does a hit take longer when the store holds more?"""

from __future__ import annotations

import os

from opforge.builders.lookup.finder import find

from .harness import Report, scaled, take_turns
from .made_up import fill
from .scratch import Scratch, too_long

SIZES, LONG_SIZES = (10, 1_000, 10_000), (100_000,)
ROUNDS = 200


def run(scratch: Scratch) -> Report:
    """Stores of several sizes by turns in one process, each time with a builder that remembers nothing."""
    from opforge.builders.cpu.adam import CPUAdamBuilder
    from opforge.cache.current import open_store
    from opforge.cache.layout import VERSION

    report = Report(
        "the look-up of a cached op (`find()`: every check of a hit, without opening the library)",
        f"the same look-up in a store of {SIZES[0]}: made-up entries of other ops are all that the others hold more",
    )
    if not scratch.long:
        report.left_out += [too_long(f"{size} entries") for size in LONG_SIZES]
    stores = {}
    for size in (*SIZES, *(LONG_SIZES if scratch.long else ())):
        folder = scratch.fresh("store")
        CPUAdamBuilder().build(store=open_store(folder))
        fill(os.path.join(folder, VERSION), size)
        stores[f"{size} entries"] = open_store(folder)

    def look(name: str) -> None:
        found = find(CPUAdamBuilder().spec(), stores[name]).entry
        if found is None or found.origin != "cache":
            raise AssertionError(f"no hit in the store with {name}")

    contenders = {name: lambda name=name: look(name) for name in stores}
    take_turns(contenders, 1, pause=1.0)  # past the two seconds in which files are too young to be trusted
    samples = take_turns(contenders, ROUNDS, warmup=5)
    names = list(stores)
    table = report.table("A look-up", "ms", against=(names[0],))
    for name, spent in samples.items():
        table.add(name, scaled(spent, 1e3))
    report.figure("a look-up among the most", table.ratios(table.rows[-1])[names[0]], "of one among the fewest", 1.2)
    return report
