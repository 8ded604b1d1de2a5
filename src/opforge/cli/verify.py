"""`opforge verify`: checks the cache and packages of this machine, or a store."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from opforge.cli.completion import names as completed_names
from opforge.cli.guard import FAILED, OK, Guarded, json_option
from opforge.cli.output import counted, emit_json, is_terminal
from opforge.cli.progress import reporter

from . import kinds, verbs
from .remote.stores import opened, split

if TYPE_CHECKING:
    from opforge.remote.kinds import Kind, StoredArtifact


@click.command("verify", cls=Guarded)
@click.argument(
    "words",
    nargs=-1,
    metavar=f"[URL] [OP|KEY|ORG/NAME|{verbs.FORMS}]...",
    shell_complete=completed_names.stored,
)
@click.option(
    "--deep", is_flag=True, help="Of packages: hash every file, and check signatures with today's trust file."
)
@json_option
def command(words: tuple[str, ...], deep: bool, as_json: bool) -> None:
    """Check the cache and the installed packages; with a URL, everything in that store.

    All kinds in the cache are checked in full, by digest. A damaged entry is set aside, and built again when it is
    needed. With names, only these are checked. In a store every statement and all its files are checked, with the keys
    that are trusted here, and the lists of withdrawals. The exit code is 1 if anything is damaged or would be refused.

    \b
    Examples:
      opforge verify
      opforge verify acme/relu --deep
      opforge verify CPUAdam 'tuned:*'
      opforge verify https://ops.example/ops
    """
    url, names = split(words)
    if url:
        if names or deep:
            raise click.UsageError(f"{verbs.WITHOUT_NAMES['verify URL']}: leave out names and --deep.")
        return _verify_store(url, as_json)
    named = kinds.by_kind(names, "verify")
    nothing: dict[str, Any] = {"checked": 0, "damaged": []}
    ops = _verify_cache(named["op"], as_json) if named["op"] or not names else nothing
    others = _verify_others(kinds.named_in(named) if names else [*map(kinds.of, verbs.OTHERS)], named, as_json)
    packages = _verify_packages(named["package"], deep) if named["package"] or not names else []
    if as_json:
        emit_json({"ops": ops, "others": others, "packages": packages})
    else:
        for package in packages:
            intact = f"intact, {package.get('assurance')}"
            what = f"{package['name']} {package['version']} in {package['folder']}"
            click.echo(f"{what}: {'; '.join(package['problems']) or intact}")
    is_damaged = ops["damaged"] or others["damaged"]
    sys.exit(FAILED if is_damaged or any(package["problems"] for package in packages) else OK)


def _verify_cache(names: Sequence[str], as_json: bool) -> dict[str, Any]:
    """Checks the entries of the cache, or the named ones; prints the damaged ones, and returns the JSON."""
    from opforge.cache.current_store import own_store
    from opforge.cache.maintenance import verify

    from .cache.entries import matching_entries

    store = own_store()
    keys = {entry.key for entry in matching_entries(store.layout, names, readable=False)} if names else None
    with reporter(1, quiet=as_json or not is_terminal(sys.stderr)) as progress:
        progress.begin("verify")

        def step(done: int, total: int) -> None:
            progress.step("verify", done, total, "")

        entries = verify.verify(store.layout, store.owners, step, keys)
    damaged = [entry for entry in entries if entry.problem]
    if not as_json:
        for entry in damaged:
            click.echo(f"damaged {entry.op or entry.key}: {entry.problem} ({entry.path})")
        left = sum(not entry.quarantined for entry in damaged)
        fate = f", {left} of them not set aside" if left else " and set aside" if damaged else ""
        click.echo(f"{counted(len(entries), 'entry', 'entries')} checked, {len(damaged)} damaged{fate}")
    return {"checked": len(entries), "damaged": [entry.to_json() for entry in damaged]}


def _verify_others(of: Sequence[Kind], named: Mapping[str, Sequence[str]], as_json: bool) -> dict[str, Any]:
    """Checks artifacts of these kinds in the cache, and prints the damaged ones; returns the output of --json."""
    from opforge.cache import staging
    from opforge.cache.current_store import own_store

    store, counts, damaged = own_store(), dict[str, int](), list[dict[str, Any]]()
    for kind in of:
        for one in kinds.stored(kind, named[kind.name] or None):
            problem = one.problem or _problem(kind, one, store.owners)
            if not os.path.lexists(one.path):
                continue  # another process has removed it
            counts[kind.name] = counts.get(kind.name, 0) + 1
            if problem:
                is_gone = staging.set_aside(store.layout, one.path, problem)
                name = f"{kind.name}:{one.name}" if one.name else ""
                fields = {"kind": kind.name, "name": name, "path": one.path}
                damaged.append({**fields, "problem": problem, "set_aside": is_gone})
    for entry in () if as_json else damaged:
        what = entry["name"] or entry["kind"]
        fate = "set aside" if entry["set_aside"] else "not set aside"
        click.echo(f"damaged {what}: {entry['problem']} ({entry['path']}, {fate})")
    if not as_json and counts:
        checked = ", ".join(kinds.counted(kinds.of(name), count) for name, count in counts.items())
        click.echo(f"{checked} checked, {len(damaged)} damaged")
    return {"checked": sum(counts.values()), "damaged": damaged}


def _problem(kind: Kind, one: StoredArtifact, owners: Collection[int]) -> str:
    try:
        return kind.check(one, owners)
    except ValueError as error:
        return str(error)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"


def _verify_packages(names: Sequence[str], deep: bool) -> list[dict[str, Any]]:
    from opforge.packages.registry import verify_installed

    from .kernels.installed import damaged, releases_of

    return [
        {
            "name": release.name,
            "version": str(release.version),
            "folder": release.root.path,
            "signer": release.signer,
            "assurance": release.assurance,
            "problems": verify_installed.problems(release, deep),
        }
        for release in releases_of(names)
    ] + damaged(names)


def _verify_store(url: str, as_json: bool) -> None:
    from opforge.remote import contents

    remote, store = opened(url)
    with reporter(1, quiet=as_json or not is_terminal(sys.stderr)) as progress:
        progress.begin("verify")
        checked = contents.verify(store, remote, lambda count: progress.step("verify", count, count, ""))
    refused = [item for item in checked if item.problem]
    if as_json:
        emit_json({"checked": len(checked), "refused": [item.to_json() for item in refused]})
    else:
        for item in refused:
            click.echo(f"refused {item.kind} {item.name or item.topic} {item.label}: {item.problem}")
        click.echo(f"{counted(len(checked), 'statement', 'statements')} checked, {len(refused)} refused")
    sys.exit(FAILED if refused else OK)
