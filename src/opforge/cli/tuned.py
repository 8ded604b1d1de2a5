"""The names of tuning results on the command line, `tuned:OP`, and those that are on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from .selection import normalized

if TYPE_CHECKING:
    from opforge.cache.records.tuned import Stored

PREFIX = "tuned:"


def split(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the ops whose tuning results are named, and the other names."""
    results = [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]
    return results, [name for name in names if not name.startswith(PREFIX)]


def stored(ops: Sequence[str] | None = None) -> list[Stored]:
    """Returns the tuning results in the cache, or those of these ops; "*" is all of them.

    Raises click.UsageError for an op that has none.
    """
    from opforge.cache.current import own_store
    from opforge.cache.records import tuned

    found = list(tuned.stored(own_store().layout.root))
    if ops is None or "*" in ops:
        return found
    wanted = {normalized(op): op for op in ops}
    chosen = [one for one in found if not one.problem and normalized(one.value["op"]) in wanted]
    missing = wanted.keys() - {normalized(one.value["op"]) for one in chosen}
    if missing:
        there = ", ".join(sorted({one.value["op"] for one in found if not one.problem})) or "none"
        absent = ", ".join(PREFIX + wanted[name] for name in sorted(missing))
        raise click.UsageError(f"there is no {absent} here. There are results of: {there}. See opforge tune.")
    return chosen
