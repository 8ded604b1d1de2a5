"""`opforge verify`: checks what is on this machine, or in a store."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from opforge.cli.guard import FAILED, OK, Guarded, json_option
from opforge.cli.output import counted, emit_json, is_terminal
from opforge.cli.progress import reporter

from .remote.stores import opened, split


@click.command("verify", cls=Guarded)
@click.argument("words", nargs=-1, metavar="[URL] [ORG/NAME]...")
@click.option(
    "--deep", is_flag=True, help="Of packages: hash every file, and check signatures with today's trust file."
)
@json_option
def command(words: tuple[str, ...], deep: bool, as_json: bool) -> None:
    """Check the cache and the installed packages; with a URL, everything in that store.

    Of the cache everything is checked in full, by digest: ops, tuning results, kernels of Triton and compiled graphs.
    What is damaged is set aside, and made again when it is needed. With names, only these packages are checked. In a
    store every statement and all its files are checked, with the keys that are trusted here, and the lists of
    withdrawals. The exit code is 1 if something is damaged or would not be accepted.

    \b
    Examples:
      opforge verify
      opforge verify acme/relu --deep
      opforge verify https://ops.example/ops
    """
    url, names = split(words)
    if url:
        if names or deep:
            raise click.UsageError("a store is checked as a whole: leave out names and --deep.")
        return _verify_store(url, as_json)
    nothing: dict[str, Any] = {"checked": 0, "damaged": []}
    ops, others = (nothing, nothing) if names else (_verify_cache(as_json), _verify_others(as_json))
    packages = _verify_packages(names, deep)
    if as_json:
        emit_json({"ops": ops, "others": others, "packages": packages})
    else:
        for package in packages:
            intact = f"intact, {package.get('assurance')}"
            what = f"{package['name']} {package['version']} in {package['folder']}"
            click.echo(f"{what}: {'; '.join(package['problems']) or intact}")
    is_damaged = ops["damaged"] or others["damaged"]
    sys.exit(FAILED if is_damaged or any(package["problems"] for package in packages) else OK)


def _verify_cache(as_json: bool) -> dict[str, Any]:
    """Checks the entries of the cache, and prints those that are damaged; returns what --json prints."""
    from opforge.cache.current import own_store
    from opforge.cache.maintenance import verify

    store = own_store()
    with reporter(1, quiet=as_json or not is_terminal(sys.stderr)) as progress:
        progress.begin("verify")

        def step(done: int, total: int) -> None:
            progress.step("verify", done, total, "")

        entries = verify.verify(store.layout, store.owners, step)
    damaged = [entry for entry in entries if entry.problem]
    if not as_json:
        for entry in damaged:
            click.echo(f"damaged {entry.op or entry.key}: {entry.problem} ({entry.path})")
        left = sum(not entry.quarantined for entry in damaged)
        fate = f", {left} of them not set aside" if left else " and set aside" if damaged else ""
        click.echo(f"{counted(len(entries), 'entry', 'entries')} checked, {len(damaged)} damaged{fate}")
    return {"checked": len(entries), "damaged": [entry.to_json() for entry in damaged]}


def _verify_others(as_json: bool) -> dict[str, Any]:
    """Checks what the cache has of all kinds but ops, and prints what is damaged; returns what --json prints."""
    from opforge.cache import staging
    from opforge.cache.current import own_store
    from opforge.remote import kinds
    from opforge.remote.kind_table import KINDS

    store, count, damaged = own_store(), 0, list[dict[str, Any]]()
    for kind in filter(None, map(kinds.of, KINDS)):
        for one in kind.stored(store.layout, store.owners):
            count += 1
            if one.problem:
                is_gone = staging.set_aside(store.layout, one.path, one.problem)
                damaged.append({"kind": kind.name, **one._asdict(), "set_aside": is_gone})
    for entry in () if as_json else damaged:
        fate = "set aside" if entry["set_aside"] else "not set aside"
        click.echo(f"damaged {entry['name'] or entry['kind']}: {entry['problem']} ({entry['path']}, {fate})")
    if not as_json and count:
        what = counted(count, "tuning result, kernel or bundle", "tuning results, kernels and bundles")
        click.echo(f"{what} checked, {len(damaged)} damaged")
    return {"checked": count, "damaged": damaged}


def _verify_packages(names: Sequence[str], deep: bool) -> list[dict[str, Any]]:
    from opforge.packages.registry import verification

    from .kernels.installed import damaged, releases_of

    return [
        {
            "name": release.name,
            "version": str(release.version),
            "folder": release.root.path,
            "signer": release.signer,
            "assurance": release.assurance,
            "problems": verification.problems(release, deep),
        }
        for release in releases_of(names)
    ] + damaged(names)


def _verify_store(url: str, as_json: bool) -> None:
    from opforge.remote import maintenance

    remote, store = opened(url)
    with reporter(1, quiet=as_json or not is_terminal(sys.stderr)) as progress:
        progress.begin("verify")
        checked = maintenance.verify(store, remote, lambda count: progress.step("verify", count, count, ""))
    refused = [item for item in checked if item.problem]
    if as_json:
        emit_json({"checked": len(checked), "refused": [item.to_json() for item in refused]})
    else:
        for item in refused:
            click.echo(f"refused {item.kind} {item.name or item.topic} {item.label}: {item.problem}")
        click.echo(f"{counted(len(checked), 'statement', 'statements')} checked, {len(refused)} refused")
    sys.exit(FAILED if refused else OK)
