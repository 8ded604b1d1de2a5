"""`opforge rm`: removes named artifacts from this machine."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from opforge.cli import messages
from opforge.cli.completion import names as completed_names
from opforge.cli.guard import FAILED, OK, Guarded, json_option
from opforge.cli.output import counted, emit_json

from . import kinds, verbs
from .kernels.options import into_options, root_of
from .removed import NAMED, dry_run_option, remove, show, summary

if TYPE_CHECKING:
    from opforge.cache.maintenance.gc import Eviction
    from opforge.packages.installed.layout import Root
    from opforge.packages.installed.releases import Installed
    from opforge.remote.kinds import Kind


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
def command(
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
    removed = remove(evictions, dry_run)
    packages = named["package"]
    releases, problems = _remove_packages(root_of(into, user), packages, dry_run) if packages else ([], [])
    warnings = [f"{line}, which is installed nowhere else" for line in (_needing(releases) if releases else ())]
    if as_json:
        from .kernels.install import to_json

        said = summary(removed, dry_run) | ({"kept_pinned": kept} if kept else {})
        gone = [to_json(release) for release in releases]
        emit_json(said | {"packages": gone, "warnings": warnings, "problems": problems})
    else:
        if len(packages) < len(names) or not names:
            show(removed, dry_run, kept)
        verb = "would remove" if dry_run else "removed"
        for release in releases:
            click.echo(f"{verb} {release.name} {release.version} from {release.root.path}")
        for warning in warnings:
            messages.show("warning", warning)
        for problem in problems:
            messages.show_error(problem)
    sys.exit(FAILED if problems else OK)


def _evictions(names: Sequence[str], takes_all: bool, pinned: bool) -> tuple[list[Eviction], int]:
    """Returns the removals from the cache, and the number of pinned entries that stay."""
    from opforge.cache.current_store import own_store
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
    from opforge.cache.current_store import own_store

    entries = counted(sum(item.kind == "entry" for item in evictions), "entry", "entries")
    click.confirm(f"Remove {entries} from {own_store().layout}?", abort=True)


def _remove_packages(root: Root, texts: Sequence[str], dry_run: bool) -> tuple[list[Installed], list[str]]:
    """Removes installed packages; returns the releases, and what went wrong."""
    from opforge.packages.installed import layout, releases
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
            others = [other.path for other in layout.roots() if [*releases.matching(other, *requirement)]]
            hint = f". It is in {others[0]}, which --into can name" if others else ""
            problems.append(f"{text} is not installed in {root.path}{hint}")
    return removed, problems


def _needing(removed: Sequence[Installed]) -> list[str]:
    """Returns the installed packages that need what was removed, and do not find it any more."""
    from opforge.packages.installed import layout, releases

    return releases.needing(removed, [*{release.root: None for release in removed}, *layout.roots()])
