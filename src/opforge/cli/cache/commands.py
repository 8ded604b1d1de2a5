"""`opforge cache`: lists, checks and limits the cache. `transfer.py` has the commands that move entries."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from opforge.cli.completion import names as completed_names
from opforge.cli.guard import FAILED, OK, Guarded, GuardedGroup, json_option
from opforge.cli.output import age_text, counted, emit_json, is_terminal, show_table, size_text
from opforge.cli.units import age, size

from .entries import matching_entries, names_argument
from .explain import command as explain
from .stats import command as stats
from .transfer import export_command, import_command, pin_command, unpin_command

if TYPE_CHECKING:
    from opforge.cache.maintenance.gc import Eviction


@click.group("cache", cls=GuardedGroup)
def group() -> None:
    """Show, check and limit the cache of built ops, and explain why an op is not in it."""


for _command in (explain, stats, export_command, import_command, pin_command, unpin_command):
    group.add_command(_command)


@group.command("path", cls=Guarded)
@json_option
def path_command(as_json: bool) -> None:
    """Print the cache folder: OPFORGE_CACHE_DIR, or the platform's default.

    \b
    Example:
      opforge cache path
    """
    from opforge import settings

    path, chosen = settings.cache_dir()
    emit_json({"path": path, "chosen": chosen, "layers": settings.cache_layers()}) if as_json else click.echo(path)


@group.command("ls", cls=Guarded)
@json_option
def ls_command(as_json: bool) -> None:
    """List the entries: op, target, ABI, size, age, last use, key and path.

    \b
    Examples:
      opforge cache ls
      opforge cache ls --json
    """
    from opforge.cache.current import own_store
    from opforge.cache.maintenance import listing

    layout = own_store().layout
    entries, now = listing.entries(layout), time.time()
    if as_json:
        return emit_json([entry.to_json() for entry in entries])
    if not entries and is_terminal():
        return click.echo("the cache is empty")
    rows = [
        (
            *(entry.op or f"({entry.problem})", entry.target, entry.abi, size_text(entry.size)),
            *(age_text(now - entry.built), age_text(now - entry.used), entry.key[:12], entry.path),
        )
        for entry in entries
    ]
    columns = ("OP", "TARGET", "ABI", "SIZE", "AGE", "USED", "KEY", "PATH")
    show_table(columns, rows, numbers=("SIZE", "AGE", "USED"), optional="PATH")
    return None


@group.command("verify", cls=Guarded)
@json_option
def verify_command(as_json: bool) -> None:
    """Check every entry in full, by digest. Damaged ones are set aside, and rebuilt when they are needed.

    The exit code is 1 if an entry was damaged.

    \b
    Example:
      opforge cache verify
    """
    from opforge.cache.current import own_store
    from opforge.cache.maintenance import verify
    from opforge.cli.progress import reporter

    store = own_store()
    with reporter(1, quiet=as_json or not is_terminal(sys.stderr)) as progress:
        progress.begin("verify")

        def step(done: int, total: int) -> None:
            progress.step("verify", done, total, "")

        entries = verify.verify(store.layout, store.owners, step)
    damaged = [entry for entry in entries if entry.problem]
    if as_json:
        emit_json({"checked": len(entries), "damaged": [entry.to_json() for entry in damaged]})
    else:
        for entry in damaged:
            click.echo(f"damaged {entry.op or entry.key}: {entry.problem} ({entry.path})")
        left = sum(not entry.quarantined for entry in damaged)
        fate = f", {left} of them not set aside" if left else " and set aside" if damaged else ""
        click.echo(f"{counted(len(entries), 'entry', 'entries')} checked, {len(damaged)} damaged{fate}")
    sys.exit(FAILED if damaged else OK)


@group.command("gc", cls=Guarded)
@click.option(
    "--max-size",
    type=size,
    help="Evict the least recently used until the cache is this small, such as 2GiB. Default: OPFORGE_CACHE_MAX_SIZE.",
)
@click.option(
    "--max-age",
    type=age,
    help="Evict entries that were not used for this long, such as 30d. Default: OPFORGE_CACHE_MAX_AGE.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@json_option
def gc_command(max_size: int | None, max_age: float | None, dry_run: bool, as_json: bool) -> None:
    """Remove what exceeds the limits, and what killed processes and failed builds left.

    Pinned entries stay, and so does what was built or used within the last seconds.

    \b
    Examples:
      opforge cache gc --dry-run
      opforge cache gc --max-size 2GiB --max-age 30d
    """
    from opforge import limit_settings
    from opforge.cache.current import own_store
    from opforge.cache.filesystem.files import now_in
    from opforge.cache.maintenance import gc

    layout = own_store().layout
    max_size = limit_settings.cache_max_size() if max_size is None else max_size
    max_age = limit_settings.cache_max_age() if max_age is None else max_age
    _remove(layout, gc.over_limit(layout, now_in(layout.path()), max_size, max_age), dry_run, as_json)


@group.command("clear", cls=Guarded)
@names_argument
@click.option("--pinned", is_flag=True, help="Remove pinned entries too.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@json_option
def clear_command(names: Sequence[str], pinned: bool, yes: bool, as_json: bool) -> None:
    """Remove all entries, or those of some ops or keys. Builds in progress are not disturbed.

    Pinned entries stay, unless they are named or --pinned is given.

    \b
    Examples:
      opforge cache clear --yes
      opforge cache clear CPUAdam 3f9c2a
    """
    from opforge.cache.current import own_store
    from opforge.cache.maintenance import gc
    from opforge.cache.records import pins

    layout = own_store().layout
    keys = {entry.key for entry in matching_entries(layout, names, readable=False)} if names else None
    evictions = gc.everything(layout, keys, pinned)
    kept = 0 if names or pinned else pins.kept_entries(layout)
    if evictions and not yes:
        if as_json or not sys.stdin.isatty():
            raise click.UsageError("without a terminal, or with --json, nothing can be confirmed: expected --yes.")
        entries = counted(sum(item.kind == "entry" for item in evictions), "entry", "entries")
        click.confirm(f"Remove {entries} from {layout}?", abort=True)
    _remove(layout, evictions, False, as_json, kept)


@group.command("rm", cls=Guarded)
@click.argument("names", nargs=-1, required=True, metavar="OP|KEY...", shell_complete=completed_names.stored)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@json_option
def rm_command(names: Sequence[str], dry_run: bool, as_json: bool) -> None:
    """Remove the entries of these ops or keys, pinned or not, without asking. The next load builds them again.

    \b
    Examples:
      opforge cache rm CPUAdam
      opforge cache rm 3f9c2a --dry-run
    """
    from opforge.cache.current import own_store
    from opforge.cache.maintenance import gc

    layout = own_store().layout
    keys = {entry.key for entry in matching_entries(layout, names, readable=False)}
    _remove(layout, gc.everything(layout, keys, True), dry_run, as_json)


def _remove(layout: Any, evictions: Sequence[Eviction], dry_run: bool, as_json: bool, kept: int = 0) -> None:
    from opforge.cache.maintenance import gc

    removed = list(evictions) if dry_run else gc.remove(layout, evictions)
    size = sum(item.size for item in removed)
    if as_json:
        summary = {"dry_run": dry_run, "bytes": size, "removed": [item._asdict() for item in removed]}
        return emit_json(summary | ({"kept_pinned": kept} if kept else {}))
    verb = "would remove" if dry_run else "removed"
    kinds: dict[str, int] = {}
    for item in removed:
        kinds[item.kind] = kinds.get(item.kind, 0) + 1
        if item.kind == "entry":
            click.echo(f"{verb} {item.op}, {size_text(item.size)}: {item.path} ({item.reason})")
    entries = counted(kinds.pop("entry", 0), "entry", "entries")
    others = "".join(f", {counted(number, kind, kind + 's')}" for kind, number in kinds.items())
    click.echo(f"{verb} {entries}{others}, {size_text(size)} in all")
    if kept:
        click.echo(f"kept {counted(kept, 'pinned entry', 'pinned entries')}: to remove them, name them or use --pinned")
    return None
