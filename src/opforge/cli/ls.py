"""`opforge ls`: lists the artifacts on this machine, or in a store."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING

import click

from opforge.cli.completion import names as completed_names
from opforge.cli.guard import Guarded, json_option
from opforge.cli.output import age_text, emit_json, emit_json_list, is_terminal, show_table, size_text

from . import kinds, verbs
from .kernels import benchmarks
from .remote.stores import opened, split

if TYPE_CHECKING:
    from opforge.cache.maintenance.listing import StoredEntry
    from opforge.packages.installed.releases import Installed
    from opforge.packages.registry.release import Release
    from opforge.remote.contents import Item


@click.command("ls", cls=Guarded)
@click.argument("words", nargs=-1, metavar="[URL] [NAME]...", shell_complete=completed_names.stored)
@click.option("--kind", type=click.Choice((*verbs.PLAIN, *verbs.OTHERS)), help="List these alone.")
@json_option
def command(words: tuple[str, ...], kind: str | None, as_json: bool) -> None:
    """List built ops, packages, and all other kinds; with a URL, the contents of that store.

    NAME is an op, a key of the cache, a package as ORG/NAME, or another kind as KIND:NAME, such as tuned:CPUAdam and
    jit:triton/solver; it may be a glob. With --kind it is a name of that kind. For a package
    that was published with --bench the measurements are listed too, by machine. Signatures in a store are not verified:
    see `opforge verify URL`. A server that cannot list its contents is asked for packages by their names.

    \b
    Examples:
      opforge ls
      opforge ls CPUAdam
      opforge ls s3://kernels/ops acme/relu
    """
    url, given = split(words)
    if url:
        return _show_store(url, given, kind, as_json)
    names = kinds.by_kind(given, "ls", kind or "")
    wanted = [name for name in names if names[name] or (not given and kind in (None, name))]
    entries = _entries(names["op"]) if "op" in wanted else []
    releases = _installed(names["package"]) if "package" in wanted else []
    others = {name: kinds.stored(kinds.of(name), names[name] or None) for name in verbs.OTHERS if name in wanted}
    if as_json:
        from .kernels.install import to_json

        listed = {name: [kinds.to_json(one) for one in found] for name, found in others.items() if found}
        packages = [to_json(release) for release in releases]
        return emit_json({"ops": [entry.to_json() for entry in entries], "packages": packages, **listed})
    if not entries and not releases and not any(others.values()) and is_terminal():
        empty = "the cache is empty, and no package is installed"
        return click.echo(empty if kind is None else f"there is nothing of the kind {kind} on this machine")
    tables = list[Callable[[], None]]()
    if "op" in wanted and (entries or not releases):
        tables.append(lambda: _print_entries(entries))
    if releases or ("package" in wanted and "op" not in wanted):
        tables.append(lambda: _print_releases(releases, bool(names["package"])))
    for name, found in others.items():
        if found or kind == name:
            tables.append(partial(kinds.show, kinds.of(name), found))
    for number, table in enumerate(tables):
        click.echo() if number else None
        table()
    return None


def _show_store(url: str, given: Sequence[str], kind: str | None, as_json: bool) -> None:
    found = _in_store(url, given, kind)
    # A name that the store lacks is an error, without a line: so these are looked for first.
    _print_store(iter(list(found)) if given else found, as_json)
    packages = [*filter(kinds.is_plain, kinds.by_kind(given, "ls URL", kind or "")["package"])]
    if packages and not as_json:
        _print_benchmarks(benchmarks.in_store(opened(url)[1], packages))


def _print_benchmarks(releases: Sequence[Release]) -> None:
    for release in releases:
        benchmarks.show(release)


def _entries(names: Sequence[str]) -> list[StoredEntry]:
    from opforge.cache.current_store import own_store

    from .cache.entries import matching_entries

    return matching_entries(own_store().layout, names, readable=False)


def _print_entries(entries: Sequence[StoredEntry]) -> None:
    now, kernels = time.time(), _kernels(entries)
    rows = [
        (
            *(entry.op or f"({entry.problem})", entry.target, entry.abi),
            *([kernels.get(entry.key, "")] if kernels else []),
            *(size_text(entry.size), age_text(now - entry.built), age_text(now - entry.used)),
            *(entry.key[:12], entry.path),
        )
        for entry in entries
    ]
    columns = ("OP", "TARGET", "ABI", *(["KERNELS"] if kernels else []), "SIZE", "AGE", "USED", "KEY", "PATH")
    show_table(columns, rows, numbers=("KERNELS", "SIZE", "AGE", "USED"), optional="PATH")


def _kernels(entries: Sequence[StoredEntry]) -> dict[str, int]:
    """Returns the number of Triton kernels of each entry, by its key, where lines would look alike without it.

    A library with the configs of kernels is an entry beside the usual one.
    """
    from opforge.cache.current_store import own_store
    from opforge.cache.maintenance.listing import build_of

    alike = Counter(map(_of_line, entries))
    counts = dict[str, int]()
    for entry in entries:
        if alike[_of_line(entry)] > 1 and not entry.target.startswith("cpu"):
            components = (build_of(own_store().layout, entry.key) or {}).get("components")
            if isinstance(components, dict) and components.get("kernels"):
                counts[entry.key] = len(components["kernels"])
    return counts


def _of_line(entry: StoredEntry) -> tuple[str, str, str]:
    return entry.op, entry.target, entry.abi


def _installed(names: Sequence[str]) -> list[Installed]:
    """Returns the installed releases, or those of these packages. Raises click.UsageError for one that is not there."""
    from opforge.foundation import settings

    folders = [os.path.join(root, "kernels", "names") for root, _scope in settings.kernel_folders()]
    if not names and not any(map(os.path.isdir, folders)):
        return []
    from .kernels.installed import releases_of

    return releases_of(names)


def _print_releases(releases: Sequence[Installed], with_benchmarks: bool) -> None:
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
    if with_benchmarks:
        _print_benchmarks(benchmarks.installed(releases))


def _in_store(url: str, given: Sequence[str], kind: str | None) -> Iterator[Item]:
    """Yields the items of a store, or those with these names. Raises StoreError; click.UsageError at the end."""
    from opforge.packages.form.names import check
    from opforge.remote import contents

    remote, store = opened(url)
    if not given:
        yield from contents.items(store, kind or "")
        return
    absent = list[str]()
    for name, names in kinds.by_kind(given, "ls URL", kind or "").items():
        found, of_kind = set[str](), kinds.of(name)
        # A server that cannot list its contents is asked for packages by their names.
        items = contents.items(store, name) if names else iter(())
        if name == "package" and all(map(kinds.is_plain, names)):
            items = chain.from_iterable(contents.of_name(store, name, check(one, "NAME")) for one in names)
        for item in items:
            meant = [one for one in names if kinds.is_meant(of_kind, item.name or item.topic, item.label, one)]
            found.update(meant)
            if meant:
                yield item
        absent += [one if name in verbs.PLAIN else f"{name}:{one}" for one in names if one not in found]
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
