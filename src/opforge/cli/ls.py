"""`opforge ls`: what is on this machine, or in a store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

from opforge.cli.completion import names as completed_names
from opforge.cli.guard import Guarded, json_option
from opforge.cli.output import age_text, emit_json, emit_json_list, is_terminal, show_table, size_text

from . import kinds
from .kernels import benchmarks
from .remote.stores import opened, split

if TYPE_CHECKING:
    from opforge.cache.maintenance.listing import StoredEntry
    from opforge.packages.installed.releases import Installed
    from opforge.packages.registry.release import Release
    from opforge.remote.maintenance import Item


@click.command("ls", cls=Guarded)
@click.argument("words", nargs=-1, metavar="[URL] [NAME]...", shell_complete=completed_names.stored)
@click.option("--kind", type=click.Choice(("op", "package", "compiled", "tuned", "triton")), help="List these alone.")
@json_option
def command(words: tuple[str, ...], kind: str | None, as_json: bool) -> None:
    """List built ops, packages, tuning results, Triton's kernels, compiled graphs; with a URL, what that store holds.

    NAME is an op, a key of the cache, a package as ORG/NAME, tuning results as tuned:OP, kernels that Triton itself
    compiled as triton:NAME, or graphs as compiled:NAME. With --kind it is a name of that kind. Of a package also what
    was measured of it is listed, by machine, if it was published with --bench. Signatures in a store are not verified:
    see `opforge verify URL`. A server that cannot list what it has is asked for packages by their names.

    \b
    Examples:
      opforge ls
      opforge ls CPUAdam
      opforge ls s3://kernels/ops acme/relu
    """
    url, given = split(words)
    if url:
        found = _in_store(url, given, kind)
        # A name that the store lacks is an error, without a line: so these are looked for first.
        _print_store(iter(list(found)) if given else found, as_json)
        named = [name for name in given if "/" in name]
        return None if as_json or not named else _print_benchmarks(benchmarks.in_store(opened(url)[1], named))
    of_kind, names = _by_kind(given, kind)
    wants_ops = kind in (None, "op") and (not given or bool(names["op"]))
    wants_packages = kind in (None, "package") and (not given or bool(names["package"]))
    entries = _entries(names["op"]) if wants_ops else []
    releases = _installed(names["package"]) if wants_packages else []
    parts = {name: of_kind(name, module.stored) for name, module in kinds.MODULES.items()}
    if as_json:
        from .kernels.install import to_json

        listed = {name: [kinds.MODULES[name].to_json(one) for one in held] for name, held in parts.items() if held}
        packages = [to_json(release) for release in releases]
        return emit_json({"ops": [entry.to_json() for entry in entries], "packages": packages, **listed})
    if not entries and not releases and not any(parts.values()) and is_terminal():
        empty = "the cache is empty, and no package is installed"
        return click.echo(empty if kind is None else f"there is nothing of the kind {kind} on this machine")
    if wants_ops and (entries or not releases):
        _print_entries(entries)
    if releases or (wants_packages and not wants_ops):
        click.echo() if wants_ops and entries else None
        _print_releases(releases)
        if names["package"]:
            _print_benchmarks(benchmarks.installed(releases))
    is_first = not entries and not releases
    for name, held in parts.items():
        if held or kind == name:
            click.echo() if not is_first else None
            kinds.MODULES[name].show(held)
            is_first = False
    return None


def _by_kind(
    given: Sequence[str], kind: str | None
) -> tuple[Callable[[str, Callable[[Sequence[str] | None], list[Any]]], list[Any]], dict[str, list[str]]]:
    """Returns a function that lists what was named of a kind, and the names by kind.

    With a kind a name needs nothing before it. Otherwise a package is a name with a slash.
    """
    named, others = kinds.by_kind(given)
    names: dict[str, list[str]] = {"op": [], "package": [], **named}
    for name in others:
        names[kind or ("package" if "/" in name else "op")].append(name)

    def listed(name: str, stored: Callable[[Sequence[str] | None], list[Any]]) -> list[Any]:
        if names[name]:
            return stored(names[name])
        return stored(None) if not given and kind in (None, name) else []

    return listed, names


def _print_benchmarks(releases: Sequence[Release]) -> None:
    for release in releases:
        benchmarks.show(release)


def _entries(names: Sequence[str]) -> list[StoredEntry]:
    from opforge.cache.current import own_store

    from .cache.entries import matching_entries

    return matching_entries(own_store().layout, names, readable=False)


def _print_entries(entries: Sequence[StoredEntry]) -> None:
    now = time.time()
    rows = [
        (
            *(entry.op or f"({entry.problem})", entry.target, entry.abi, size_text(entry.size)),
            *(age_text(now - entry.built), age_text(now - entry.used), entry.key[:12], entry.path),
        )
        for entry in entries
    ]
    columns = ("OP", "TARGET", "ABI", "SIZE", "AGE", "USED", "KEY", "PATH")
    show_table(columns, rows, numbers=("SIZE", "AGE", "USED"), optional="PATH")


def _installed(names: Sequence[str]) -> list[Installed]:
    """Returns the installed releases, or those of these packages. Raises click.UsageError for one that is not there."""
    from opforge import settings

    folders = [os.path.join(root, "kernels", "names") for root, _scope in settings.kernel_folders()]
    if not names and not any(map(os.path.isdir, folders)):
        return []
    from .kernels.installed import releases_of

    return releases_of(names)


def _print_releases(releases: Sequence[Installed]) -> None:
    rows = [
        (
            release.name,
            release.version,
            ", ".join(part.candidate.label for part in release.variants),
            size_text(sum(part.size for part in release.variants)),
            release.root.scope,
            f"{release.assurance}, withdrawn: {release.withdrawn}" if release.withdrawn else release.assurance,
            release.source,
        )
        for release in releases
    ]
    columns = ("PACKAGE", "VERSION", "VARIANTS", "SIZE", "WHERE", "SIGNATURE", "FROM")
    show_table(columns, rows, numbers=("SIZE",), optional="FROM")


def _in_store(url: str, names: Sequence[str], kind: str | None) -> Iterator[Item]:
    """Yields what a store holds, or what it has of these names. Raises StoreError; click.UsageError at the end."""
    from opforge.packages.form.names import check
    from opforge.remote import maintenance

    from .selection import normalized

    remote, store = opened(url)
    packages = [check(name, "NAME") for name in names if "/" in name]
    ops = {normalized(name): name for name in names if "/" not in name}
    if not names:
        yield from maintenance.items(store, kind or "")
        return
    others = {form: name for form, name in ops.items() if ":" in name}
    ops = {form: name for form, name in ops.items() if form not in others}
    absent = {*packages, *ops.values(), *others.values()}
    for of_kind in dict.fromkeys(name.partition(":")[0] for name in others.values()):
        for item in maintenance.items(store, of_kind):
            if (form := normalized(f"{of_kind}:{item.name}")) in others:
                absent.discard(others[form])
                yield item
    for name in packages:
        for item in maintenance.of_name(store, "package", name):
            absent.discard(item.topic)
            yield item
    for item in maintenance.items(store, kind or "op") if ops else ():
        if (form := normalized(item.name)) in ops:
            absent.discard(ops[form])
            yield item
    if absent:
        raise click.UsageError(f"{remote} has no {', '.join(sorted(absent))}: check the names, or name another store.")


def _print_store(listed: Iterator[Item], as_json: bool) -> None:
    """Prints the statements of a store, each as soon as it is read: there may be any number of them."""
    first = list(islice(listed, 1))  # a store that cannot be read is an error, without a line
    listed = chain(first, listed)
    if as_json:
        return emit_json_list(item.to_json() for item in listed)
    rows = (
        (
            item.kind,
            item.name or f"({item.problem})",
            item.target,
            size_text(item.size) if item.size else "-",  # what has no files: a tuning result
            " ".join(item.signers) or "-",
            f"{item.label} ({item.withdrawn})" if item.withdrawn else item.label,
        )
        for item in listed
    )
    columns = ("KIND", "NAME", "TARGET", "SIZE", "SIGNED BY", "ENTRY OR VERSION")
    return show_table(columns, rows, numbers=("SIZE",), optional="ENTRY OR VERSION")
