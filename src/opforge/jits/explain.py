"""Why no page is found: which part of each stored page's fingerprint differs from that of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from opforge.cache.layout import Layout

from . import adapter, features
from .kind import JIT


class Explained(NamedTuple):
    """The pages stored under a label, and how they differ."""

    path: str
    entries: int
    differs: tuple[str, ...]
    """Nothing if it is used here."""


def explain(layout: Layout, name: str) -> Iterator[Explained]:
    """Yields what a store has for ADAPTER/LABEL. Raises KeyError for an adapter that there is not.

    Where the adapter does nothing, as the JIT is not installed or of another release, that comes first.
    """
    one = adapter.at(adapter.every()[name.partition("/")[0]])
    here, idle = one.fingerprint(), one.version_problem()
    for stored in JIT.stored(layout):
        if stored.name == name and not stored.problem:
            there = stored.facts["fingerprint"]
            names = sorted({*there, *here})
            differs = [idle] if idle else []
            differs += [
                f"{part}: {there.get(part) or 'nothing'}, and here {here.get(part) or 'nothing'}"
                for part in names
                if there.get(part) != here.get(part)
            ]
            if lacking := features.lacking(stored.facts["features"]):
                differs.append(lacking)
            yield Explained(stored.path, len(stored.facts["parts"]), tuple(differs))
