"""`opforge cache`: looks at the cache, checks it, bounds it. Entries move in `transfer.py`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from opforge.cli.guard import FAILED, OK, Guarded, GuardedGroup, json_option
from opforge.cli.output import age_text, counted, emit_json, is_terminal, show_table, size_text
from opforge.cli.units import age, size

from .explain import command as explain
from .transfer import chosen, export_command, import_command, names_argument, pin_command, unpin_command

if TYPE_CHECKING:
    from opforge.cache.maintenance.gc import Eviction


@click.group("cache", cls=GuardedGroup)
def group() -> None:
    """Look at the cache of built ops, check it, bound it, and explain why an op is not in it."""


for _command in (explain, export_command, import_command, pin_command, unpin_command):
    group.add_command(_command)


@group.command("path", cls=Guarded)
@json_option
def path_command(as_json: bool) -> None:
    """Print the cache folder: OPFORGE_CACHE_DIR, or the platform's own."""
    from opforge import settings

    path, chosen = settings.cache_dir()
    emit_json({"path": path, "chosen": chosen, "layers": settings.cache_layers()}) if as_json else click.echo(path)


@group.command("ls", cls=Guarded)
@json_option
def ls_command(as_json: bool) -> None:
    """List the entries: op, target, ABI, size, age, last use, key and path."""
    from opforge.cache.current import own_store
    from opforge.cache.maintenance import listing

    found, now = listing.entries(own_store().layout), time.time()
    if as_json:
        return emit_json([one.to_json() for one in found])
    if not found and is_terminal():
        return click.echo("the cache is empty")
    show_table(
        ("OP", "TARGET", "ABI", "SIZE", "AGE", "USED", "KEY", "PATH"),
        [
            (
                one.op or f"({one.problem})",
                *(one.target, one.abi, size_text(one.size), age_text(now - one.built), age_text(now - one.used)),
                *(one.key[:12], one.path),
            )
            for one in found
        ],
        numbers=("SIZE", "AGE", "USED"),
        spare="PATH",
    )
    return None


@group.command("stats", cls=Guarded)
@json_option
def stats_command(as_json: bool) -> None:
    """Count what the cache holds, in files and bytes, by kind and by op."""
    from opforge.cache.current import own_store
    from opforge.cache.maintenance import listing

    layout = own_store().layout
    areas, entries = listing.areas(layout), listing.entries(layout)
    ops: dict[str, tuple[int, int, float]] = {}
    for one in entries:
        count, size, seconds = ops.get(one.op, (0, 0, 0.0))
        ops[one.op] = (count + 1, size + one.size, seconds + one.seconds)
    total = sum(one.size for one in areas)
    if as_json:
        by_op = {op: dict(zip(("entries", "bytes", "seconds"), row, strict=True)) for op, row in ops.items()}
        folders = {one.name: {"files": one.files, "bytes": one.size} for one in areas}
        return emit_json(
            {"path": str(layout), "bytes": total, "entries": len(entries), "folders": folders, "ops": by_op}
        )
    click.echo(f"{layout}: {counted(len(entries), 'entry', 'entries')}, {size_text(total)} in all")
    show_table(
        ("FOLDER", "FILES", "BYTES"), [(one.name, one.files, size_text(one.size)) for one in areas], ("FILES", "BYTES")
    )
    rows = [
        (op or "(unreadable)", count, size_text(size), f"{seconds:.1f} s") for op, (count, size, seconds) in ops.items()
    ]
    show_table(("OP", "ENTRIES", "BYTES", "BUILT IN"), rows, ("ENTRIES", "BYTES", "BUILT IN"))
    return None


@group.command("verify", cls=Guarded)
@json_option
def verify_command(as_json: bool) -> None:
    """Check every entry in full, by digest, and set damaged ones aside; they are rebuilt when they are next needed.

    The exit code is 1 where an entry was damaged.
    """
    from opforge.cache.current import own_store
    from opforge.cache.maintenance import verify
    from opforge.cli.progress import reporter

    store = own_store()
    with reporter(1, silent=as_json or not is_terminal(sys.stderr)) as progress:
        progress.begin("verify")

        def step(done: int, total: int) -> None:
            progress.step("verify", done, total, "")

        checked = verify.verify(store.layout, store.owners, step)
    bad = [one for one in checked if one.problem]
    if as_json:
        emit_json({"checked": len(checked), "damaged": [one.to_json() for one in bad]})
    else:
        for one in bad:
            click.echo(f"damaged {one.op or one.key}: {one.problem} ({one.path})")
        left = sum(not one.quarantined for one in bad)
        fate = f", {left} of them not set aside" if left else " and set aside" if bad else ""
        click.echo(f"{counted(len(checked), 'entry', 'entries')} checked, {len(bad)} damaged{fate}")
    sys.exit(FAILED if bad else OK)


@group.command("gc", cls=Guarded)
@click.option(
    "--max-size",
    type=size,
    help="Evict what is used least, down to this, such as 2GiB. By default OPFORGE_CACHE_MAX_SIZE.",
)
@click.option(
    "--max-age",
    type=age,
    help="Evict entries that were not used for this long, such as 30d. By default OPFORGE_CACHE_MAX_AGE.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@json_option
def gc_command(max_size: int | None, max_age: float | None, dry_run: bool, as_json: bool) -> None:
    """Remove what is beyond the limits, and what dead processes and failed builds left.

    What was built or used within the last seconds stays, and so does what is pinned.
    """
    from opforge import settings
    from opforge.cache.current import own_store
    from opforge.cache.maintenance import gc

    layout = own_store().layout
    max_size = settings.cache_max_size() if max_size is None else max_size
    max_age = settings.cache_max_age() if max_age is None else max_age
    _remove(layout, gc.over_limit(layout, time.time(), max_size, max_age), dry_run, as_json)


@group.command("clear", cls=Guarded)
@names_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
def clear_command(names: Sequence[str], yes: bool, as_json: bool) -> None:
    """Remove every entry, or those of some ops or keys. Builds in progress are left alone."""
    from opforge.cache.current import own_store
    from opforge.cache.maintenance import gc

    layout = own_store().layout
    wanted = {one.key for one in chosen(layout, names)} if names else None
    condemned = gc.everything(layout, wanted)
    if condemned and not yes:
        if as_json or not sys.stdin.isatty():
            raise click.UsageError("nobody can be asked here: add --yes to clear the cache.")
        entries = sum(one.kind == "entry" for one in condemned)
        click.confirm(f"Remove {counted(entries, 'entry', 'entries')} from {layout}?", abort=True)
    _remove(layout, condemned, False, as_json)


def _remove(layout: Any, condemned: Sequence[Eviction], dry_run: bool, as_json: bool) -> None:
    from opforge.cache.maintenance import gc

    removed = list(condemned) if dry_run else gc.remove(layout, condemned)
    size = sum(one.size for one in removed)
    if as_json:
        return emit_json({"dry_run": dry_run, "bytes": size, "removed": [one._asdict() for one in removed]})
    verb = "would remove" if dry_run else "removed"
    kinds: dict[str, int] = {}
    for one in removed:
        kinds[one.kind] = kinds.get(one.kind, 0) + 1
        if one.kind == "entry":
            click.echo(f"{verb} {one.op}, {size_text(one.size)}: {one.path} ({one.reason})")
    entries = counted(kinds.pop("entry", 0), "entry", "entries")
    others = "".join(f", {counted(number, kind, kind + 's')}" for kind, number in kinds.items())
    click.echo(f"{verb} {entries}{others}, {size_text(size)} in all")
    return None
