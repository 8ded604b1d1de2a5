"""The names of compiled graphs on the command line, `compiled:NAME`, and those that are on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .output import show_table, size_text

if TYPE_CHECKING:
    from opforge.graphs.store import Listed

PREFIX = "compiled:"


def stored(names: Sequence[str] | None = None) -> list[Listed]:
    """Returns the bundles of graphs in the cache, or those of these names; "*" is all of them.

    Raises click.UsageError for a name that has none.
    """
    from difflib import get_close_matches

    from opforge.cache.current import own_store
    from opforge.graphs import store

    found = list(store.listed(own_store().layout))
    if names is None or "*" in names:
        return found
    there = sorted({one.facts["name"] for one in found if not one.problem})
    for name in names:
        if name not in there:
            near = get_close_matches(name, there, n=1)
            meant = f" Did you mean {PREFIX}{near[0]}?" if near else ""
            held = ", ".join(there) or "none"
            raise click.UsageError(f"there is no {PREFIX}{name} here. There are graphs of: {held}.{meant}")
    return [one for one in found if not one.problem and one.facts["name"] in names]


def to_json(one: Listed) -> dict[str, Any]:
    """Returns what --json prints of one."""
    return {"path": one.folder, "problem": one.problem, "size": one.size, "fetched": one.is_fetched, **one.facts}


def show(bundles: Sequence[Listed]) -> None:
    """Prints a table."""
    rows = []
    for one in bundles:
        if one.problem:
            rows.append((f"({one.problem})", "", "", "", size_text(one.size), "", one.folder))
            continue
        facts, source = one.facts, "fetched" if one.is_fetched else "here"
        graphs = str(len(facts["parts"]))
        rows.append((facts["name"], facts["device"], facts["torch"], graphs, size_text(one.size), source, one.folder))
    columns = ("COMPILED", "DEVICE", "TORCH", "PARTS", "SIZE", "FROM", "PATH")
    show_table(columns, rows, numbers=("PARTS", "SIZE"), optional="PATH")
