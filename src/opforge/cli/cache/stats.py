"""`opforge cache stats`: hits, misses, the time that was saved, and how full the cache is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from opforge.cli import messages
from opforge.cli.guard import Guarded, json_option
from opforge.cli.output import counted, emit_json, heading, show_table, size_text, time_text
from opforge.errors import CacheDirError

if TYPE_CHECKING:
    from opforge.cache.layout import Layout
    from opforge.cache.maintenance.counts import Counts, Period
    from opforge.cache.maintenance.listing import Area, StoredEntry

ROWS: tuple[tuple[str, bool, Callable[[Period], str]], ...] = (
    ("hits", True, lambda period: str(period.hits)),
    ("  in the cache", False, lambda period: str(int(period.amounts["cached"]))),
    ("  in layers and remotes", False, lambda period: str(int(period.amounts["prebuilt"]))),
    ("misses", True, lambda period: str(period.misses)),
    ("hit rate", True, lambda period: "" if period.rate is None else f"{period.rate:.1%}"),
    ("builds", False, lambda period: str(int(period.amounts["built"]))),
    ("  that failed", False, lambda period: str(int(period.amounts["failed"]))),
    ("  time", False, lambda period: _seconds_text(period.amounts["building"])),
    ("waits", True, lambda period: str(int(period.amounts["waited"]))),
    ("  time", False, lambda period: _seconds_text(period.amounts["waiting"])),
    ("time saved", True, lambda period: _seconds_text(period.amounts["saved"])),
)
"""The rows of a period: name, whether the row is shown without -v, and its text."""


@click.command("stats", cls=Guarded)
@click.option("--zero", is_flag=True, help="Begin a new count. Earlier counts stay in the column ALL.")
@json_option
def command(zero: bool, as_json: bool) -> None:
    """Show hits, misses, the time that was saved, and how full the cache is. With -v also its contents.

    A hit is a look-up that found a built op; the time saved is the time of its build. Loading an op again in one
    process is not counted. The counts are of this user on this machine. Each process adds its counts when it ends: the
    hits of one that is killed are lost.

    \b
    Examples:
      opforge cache stats
      opforge cache stats -v
    """
    from opforge.cache.current_store import own_store
    from opforge.cache.maintenance import counts, listing
    from opforge.cache.records import size_log
    from opforge.foundation import settings

    layout = own_store().layout
    if zero and not counts.zero(layout.root):
        advice = "Set XDG_CACHE_HOME to a folder that you can write"
        raise CacheDirError(layout.root, "the counts of this cache cannot be written to any folder", advice)
    shown, limit = counts.read(layout.root), settings.cache_max_size()
    areas, entries = listing.areas(layout), listing.entries(layout)
    total, limited = sum(area.size for area in areas), size_log.count(layout)
    if as_json:
        folders = {area.name: {"files": area.files, "bytes": area.size} for area in areas}
        ops = {op: dict(zip(("entries", "bytes", "seconds"), row, strict=True)) for op, row in _by_op(entries).items()}
        record = {"path": str(layout), "bytes": total, "limited_bytes": limited, "limit": limit}
        record |= {"entries": len(entries), "folders": folders, "ops": ops}
        periods = {"today": shown.today, "days": shown.days, "since_zero": shown.since_zero, "all": shown.all}
        return emit_json(record | {"counts": {name: period and period.to_json() for name, period in periods.items()}})
    bound = f" of {size_text(limit)} ({limited / limit:.1%})" if limit else ", without a limit"
    click.echo(f"{layout}: {counted(len(entries), 'entry', 'entries')}, {size_text(limited)}{bound}")
    _show_counts(shown)
    if messages.verbosity() == messages.VERBOSE:
        _show_content(layout, areas, entries)
    return None


def _by_op(entries: list[StoredEntry]) -> dict[str, tuple[int, int, float]]:
    """Returns for each op how many entries it has, their bytes, and the seconds that their builds took."""
    ops: dict[str, tuple[int, int, float]] = {}
    for entry in entries:
        count, size, seconds = ops.get(entry.op, (0, 0, 0.0))
        ops[entry.op] = (count + 1, size + entry.size, seconds + entry.seconds)
    return ops


def _show_counts(shown: Counts) -> None:
    from opforge.cache.maintenance.counts import DAYS

    periods = {"TODAY": shown.today, f"{DAYS} DAYS": shown.days}
    if shown.since_zero:
        periods["SINCE ZERO"] = shown.since_zero
    periods["ALL"] = shown.all
    is_verbose = messages.verbosity() == messages.VERBOSE
    rows = [
        (name, *(text(period) for period in periods.values()))
        for name, is_always_shown, text in ROWS
        if is_always_shown or is_verbose
    ]
    columns = tuple(periods)
    show_table(("LOOK-UPS", *columns), rows, columns)
    began = [("ALL", shown.all)] + ([("SINCE ZERO", shown.since_zero)] if shown.since_zero else [])
    for name, period in began:
        if period.since:
            click.echo(f"{name}: since {time.strftime('%Y-%m-%d %H:%M', time.localtime(period.since))}")


def _show_content(layout: Layout, areas: list[Area], entries: list[StoredEntry]) -> None:
    heading(f"content of {layout}, {size_text(sum(area.size for area in areas))} in all")
    folder_rows = [(area.name, area.files, size_text(area.size)) for area in areas]
    show_table(("FOLDER", "FILES", "BYTES"), folder_rows, ("FILES", "BYTES"))
    op_rows = [
        (op or "(unreadable)", count, size_text(size), f"{seconds:.1f} s")
        for op, (count, size, seconds) in _by_op(entries).items()
    ]
    show_table(("OP", "ENTRIES", "BYTES", "BUILT IN"), op_rows, ("ENTRIES", "BYTES", "BUILT IN"))


def _seconds_text(seconds: float) -> str:
    """Returns a duration: "0 s", "1.5 s", "2 min 10 s"."""
    return f"{seconds:.1f} s" if 0 < seconds < 10 else time_text(seconds) if seconds else "0 s"
