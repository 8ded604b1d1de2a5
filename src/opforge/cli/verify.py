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

    Of the cache every entry is checked in full, by digest. Damaged ones are set aside, and rebuilt when they are
    needed. With names, only these packages are checked. In a store every statement and all its files are checked,
    with the keys that are trusted here. The exit code is 1 if something is damaged or would not be accepted.

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
    ops: dict[str, Any] = {"checked": 0, "damaged": []} if names else _verify_cache(as_json)
    packages = _verify_packages(names, deep)
    if as_json:
        emit_json({"ops": ops, "packages": packages})
    else:
        for package in packages:
            intact = f"intact, {package.get('assurance')}"
            what = f"{package['name']} {package['version']} in {package['folder']}"
            click.echo(f"{what}: {'; '.join(package['problems']) or intact}")
    sys.exit(FAILED if ops["damaged"] or any(package["problems"] for package in packages) else OK)


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


def _verify_packages(names: Sequence[str], deep: bool) -> list[dict[str, Any]]:
    from opforge.packages.registry import verification

    from .kernels.installed import damaged, releases_of

    return [
        {
            "name": release.name,
            "version": str(release.version),
            "folder": release.root.path,
            "signer": release.signer,
            "index": release.index_kind,
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
