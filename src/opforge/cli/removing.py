"""`opforge rm` and `opforge gc`: remove named artifacts, and those that nothing needs."""

from __future__ import annotations

import fnmatch
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from opforge.cli.completion import names as completed_names
from opforge.cli.guard import FAILED, OK, Guarded, json_option
from opforge.cli.messages import show_error
from opforge.cli.output import counted, emit_json, size_text
from opforge.cli.units import age, size

from . import kinds, verbs
from .kernels.options import into_options, root_of
from .remote.stores import is_url, opened

if TYPE_CHECKING:
    from opforge.cache.maintenance.gc import Eviction
    from opforge.packages.installed.layout import Root
    from opforge.packages.installed.releases import Installed
    from opforge.remote.kinds import Kind

NAMED = "named"
"""The reason for removing artifacts that are not ops."""
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")


@click.command("rm", cls=Guarded)
@click.argument(
    "names",
    nargs=-1,
    metavar=f"[OP|KEY|ORG/NAME|{verbs.FORMS}]...",
    shell_complete=completed_names.stored,
)
@click.option("--all", "takes_all", is_flag=True, help="Remove every entry of the cache but pinned ones. Asks first.")
@click.option("--pinned", is_flag=True, help="With --all: pinned entries too.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@into_options
@dry_run_option
@json_option
def rm_command(
    names: Sequence[str],
    takes_all: bool,
    pinned: bool,
    yes: bool,
    into: str | None,
    user: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove built ops from the cache, installed packages, and all other kinds by KIND:NAME.

    The command acts on this machine alone. Ops and keys are removed pinned or not, without asking; the next load builds
    them again. Of a package all versions are removed, or those of a version or a range. In a store nothing is removed
    by name: see `opforge withdraw`.

    \b
    Examples:
      opforge rm CPUAdam 3f9c2a
      opforge rm acme/relu@2.3 --user
      opforge rm jit:triton/solver jit:inductor/model
      opforge rm --all --yes
    """
    if bool(names) == takes_all or (pinned and not takes_all):
        raise click.UsageError("expected either names, or --all, with --pinned if wanted.")
    if urls := [name for name in names if "://" in name]:
        problem = "rm acts on this machine alone"
        raise click.UsageError(f"{urls[0]}: {problem}. In a store: opforge withdraw URL NAME, then opforge gc URL.")
    named = kinds.by_kind(names, "rm")
    evictions, kept = _evictions(named["op"], takes_all, pinned) if named["op"] or not names else ([], 0)
    for kind in kinds.named_in(named):
        evictions += _evictions_of(kind, named[kind.name])
    if evictions and not names and not dry_run:
        _confirm(evictions, yes, as_json)
    removed = _remove(evictions, dry_run)
    packages = named["package"]
    releases, problems = _remove_packages(root_of(into, user), packages, dry_run) if packages else ([], [])
    if as_json:
        from .kernels.install import to_json

        summary = _summary(removed, dry_run) | ({"kept_pinned": kept} if kept else {})
        emit_json(summary | {"packages": [to_json(release) for release in releases], "problems": problems})
    else:
        if len(packages) < len(names) or not names:
            _print(removed, dry_run, kept)
        verb = "would remove" if dry_run else "removed"
        for release in releases:
            click.echo(f"{verb} {release.name} {release.version} from {release.root.path}")
        for problem in problems:
            show_error(problem)
    sys.exit(FAILED if problems else OK)


def _evictions(names: Sequence[str], takes_all: bool, pinned: bool) -> tuple[list[Eviction], int]:
    """Returns the removals from the cache, and the number of pinned entries that stay."""
    from opforge.cache.current import own_store
    from opforge.cache.maintenance import gc
    from opforge.cache.records import pins

    from .cache.entries import matching_entries

    layout = own_store().layout
    if takes_all:
        return list(gc.everything(layout, None, pinned)), 0 if pinned else pins.kept_entries(layout)
    keys = {entry.key for entry in matching_entries(layout, names, readable=False)}
    return list(gc.everything(layout, keys, True)), 0


def _evictions_of(kind: Kind, names: Sequence[str]) -> list[Eviction]:
    """Returns the removals of one kind's artifacts."""
    from opforge.cache.maintenance import gc

    return [gc.Eviction(kind.noun, one.path, one.size, NAMED, one.name) for one in kinds.stored(kind, names)]


def _confirm(evictions: Sequence[Eviction], yes: bool, as_json: bool) -> None:
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise click.UsageError("without a terminal, or with --json, nothing can be confirmed: expected --yes.")
    from opforge.cache.current import own_store

    entries = counted(sum(item.kind == "entry" for item in evictions), "entry", "entries")
    click.confirm(f"Remove {entries} from {own_store().layout}?", abort=True)


def _remove(evictions: Sequence[Eviction], dry_run: bool) -> list[Eviction]:
    from opforge.cache.current import own_store
    from opforge.cache.maintenance import gc

    return list(evictions) if dry_run else list(gc.remove(own_store().layout, evictions))


def _summary(removed: Sequence[Eviction], dry_run: bool) -> dict[str, Any]:
    size = sum(item.size for item in removed)
    return {"dry_run": dry_run, "bytes": size, "removed": [item._asdict() for item in removed]}


def _print(removed: Sequence[Eviction], dry_run: bool, kept: int) -> None:
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


def _remove_packages(root: Root, texts: Sequence[str], dry_run: bool) -> tuple[list[Installed], list[str]]:
    """Removes installed packages; returns the releases, and what went wrong."""
    from opforge.packages.installed import releases
    from opforge.packages.installed import remove as removal
    from opforge.packages.registry.selection import parse_requirement

    removed, problems, installed = list[Any](), list[str](), releases.names(root)
    named = [one for typed in texts for one in fnmatch.filter(installed, typed) or [typed]]
    for text in named:
        requirement = parse_requirement(text)
        try:
            found = list(releases.matching(root, *requirement) if dry_run else removal.remove(root, *requirement))
        except OSError as error:
            advice = "run this as the folder's owner"
            problems.append(f"{text} cannot be removed from {root.path} ({error.strerror}): {advice}")
            continue
        removed += found
        if not found:
            problems.append(f"{text} is not installed in {root.path}")
    return removed, problems


@click.command("gc", cls=Guarded)
@click.argument("url", default="", metavar="[URL]")
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
@click.option(
    "--unused-for", type=age, help="In a store: also ops to which nothing was added for this long, such as 90d."
)
@dry_run_option
@json_option
def gc_command(
    url: str, max_size: int | None, max_age: float | None, unused_for: float | None, dry_run: bool, as_json: bool
) -> None:
    """Remove entries over the limits, and files of killed processes, from the cache; with a URL, from that store.

    In the cache, pinned entries stay, and so do entries that were built or used within the last seconds. In a store,
    blobs and statements are removed if nothing names them and they are older than a day.

    \b
    Examples:
      opforge gc --max-size 2GiB --max-age 30d --dry-run
      opforge gc file:///shared/ops --unused-for 90d
    """
    if url:
        if not is_url(url):
            raise click.UsageError(f"{url!r}: expected the URL of a store, or nothing for the cache.")
        if max_size is not None or max_age is not None:
            raise click.UsageError("--max-size and --max-age limit the cache: leave out the URL.")
        return _collect(url, unused_for, dry_run, as_json)
    if unused_for is not None:
        raise click.UsageError("--unused-for is for a store: name its URL. For the cache: --max-age.")
    from opforge.cache.current import own_store
    from opforge.cache.maintenance import gc
    from opforge.foundation import settings
    from opforge.foundation.files import now_in

    layout = own_store().layout
    max_size = settings.cache_max_size() if max_size is None else max_size
    max_age = settings.cache_max_age() if max_age is None else max_age
    removed = _remove(list(gc.over_limit(layout, now_in(layout.path()), max_size, max_age)), dry_run)
    return emit_json(_summary(removed, dry_run)) if as_json else _print(removed, dry_run, 0)


def _collect(url: str, unused_for: float | None, dry_run: bool, as_json: bool) -> None:
    from opforge.remote import gc

    _remote, store = opened(url)
    removed = list((gc.unused if dry_run else gc.collect)(store, time.time(), unused_for))
    if as_json:
        return emit_json({"removed": [item._asdict() for item in removed], "dry_run": dry_run})
    for item in removed:
        click.echo(f"{'would remove' if dry_run else 'removed'} {item.name}, {size_text(item.size)}: {item.reason}")
    size = size_text(sum(item.size for item in removed))
    return click.echo(f"{counted(len(removed), 'object', 'objects')}, {size}")
