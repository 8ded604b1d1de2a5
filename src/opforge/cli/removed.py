"""The common part of `opforge rm` and `opforge gc`: the removal of the chosen artifacts, and its report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from . import kinds
from .output import counted, size_text

if TYPE_CHECKING:
    from opforge.cache.maintenance.gc import Eviction

NAMED = "named"
"""The reason for removing artifacts that are not ops."""
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")


def remove(evictions: Sequence[Eviction], dry_run: bool) -> list[Eviction]:
    """Removes what was chosen, unless that is a dry run; returns what was, or would be, removed."""
    from opforge.cache.current_store import own_store
    from opforge.cache.maintenance import gc

    return list(evictions) if dry_run else list(gc.remove(own_store().layout, evictions))


def summary(removed: Sequence[Eviction], dry_run: bool) -> dict[str, Any]:
    """Returns what was removed, for JSON."""
    size = sum(item.size for item in removed)
    return {"dry_run": dry_run, "bytes": size, "removed": [item._asdict() for item in removed]}


def show(removed: Sequence[Eviction], dry_run: bool, kept: int) -> None:
    """Prints what was removed; `kept` is the number of pinned entries that were not."""
    verb = "would remove" if dry_run else "removed"
    numbers: dict[str, int] = {}
    for item in removed:
        numbers[item.kind] = numbers.get(item.kind, 0) + 1
        if item.kind == "entry" or item.reason == NAMED:
            what = item.op if item.kind == "entry" else f"the {item.kind} {item.op or 'that cannot be read'}"
            click.echo(f"{verb} {what}, {size_text(item.size)}: {item.path} ({item.reason})")
    entries = counted(numbers.pop("entry", 0), "entry", "entries")
    others = "".join(f", {counted(number, kind, kinds.plural(kind))}" for kind, number in numbers.items())
    click.echo(f"{verb} {entries}{others}, {size_text(sum(item.size for item in removed))} in all")
    if kept:
        click.echo(f"kept {counted(kept, 'pinned entry', 'pinned entries')}: to remove them, name them or use --pinned")
