"""Does a hit take longer when the store holds more?"""

from __future__ import annotations

import os
import shutil

from .harness import Report, scaled, take_turns
from .scratch import Scratch

SIZES = (10, 1_000, 10_000)
ROUNDS = 200


def run(scratch: Scratch) -> Report:
    """Stores of several sizes by turns in one process, each time with a builder that remembers nothing."""
    from opforge.builders.cpu.adam import CPUAdamBuilder
    from opforge.builders.opened import open_store
    from opforge.cache.layout import VERSION

    report = Report(
        "the look-up of a cached op (`find()`: every check of a hit, without opening the library)",
        f"the same look-up in a store of {SIZES[0]}: made-up entries of other ops are all that the others hold more",
    )
    stores = {}
    for size in SIZES:
        folder = scratch.fresh("store")
        CPUAdamBuilder().obtain(store=open_store(folder))
        fill(os.path.join(folder, VERSION), size)
        stores[f"{size} entries"] = open_store(folder)

    def look(name: str) -> None:
        found = CPUAdamBuilder().find(stores[name])
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


def fill(root: str, size: int) -> None:
    """Give the store as many entries as asked: its one plan, entry and description copied under made-up keys."""
    (plan,) = os.listdir(os.path.join(root, "plans"))
    (entry,) = os.listdir(os.path.join(root, "entries"))
    (description,) = os.listdir(os.path.join(root, "descriptions"))
    for number in range(size - 1):
        key = f"{number:032x}"
        _copy(os.path.join(root, "plans", plan), os.path.join(root, "plans", key), entry, key)
        _copy(os.path.join(root, "entries", entry), os.path.join(root, "entries", key), entry, key)
        _copy(os.path.join(root, "descriptions", description), os.path.join(root, "descriptions", key), entry, key)


def _copy(source: str, target: str, entry: str, key: str) -> None:
    os.mkdir(target, 0o700)
    for name in os.listdir(source):
        copied = os.path.join(target, name.replace(entry, key))
        if name.endswith(".so"):
            # Its content does not matter, and thousands of copies would fill the disk.
            os.link(os.path.join(source, name), copied)
        else:
            shutil.copyfile(os.path.join(source, name), copied)
