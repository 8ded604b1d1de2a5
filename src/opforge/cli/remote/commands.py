"""`opforge remote`: publishes to a remote, lists and verifies it, removes what nothing names."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from opforge.cli.completion import names as completed_names
from opforge.cli.guard import FAILED, OK, Guarded, GuardedGroup, error_text, json_option
from opforge.cli.output import counted, emit_json, is_terminal, show_table, size_text
from opforge.cli.units import age

if TYPE_CHECKING:
    from opforge.remote.remotes import Remote
    from opforge.remote.stores.protocol import ObjectStore

url_argument = click.argument("url")
key_option = click.option("--key", "key", default="", metavar="NAME", help="Sign with this one of your key files.")


@click.group("remote", cls=GuardedGroup)
def group() -> None:
    """Publish built ops to a remote store, and look after what it holds."""


def parsed(url: str, name: str = "URL") -> Remote:
    """Returns the remote of a URL, which was typed as `name`. Raises click.UsageError."""
    from opforge.errors import SettingError
    from opforge.remote import remotes

    try:
        return remotes.parse(url, name)
    except SettingError as error:
        raise click.UsageError(str(error)) from error


def opened(url: str, name: str = "URL") -> tuple[Remote, ObjectStore]:
    """Returns the remote of a URL with its store. Raises click.UsageError, StoreError."""
    from opforge import settings
    from opforge.remote.stores import open_store

    remote = parsed(url, name)
    return remote, open_store(remote.url, settings.offline())


@group.command("push", cls=Guarded)
@url_argument
@click.argument("names", nargs=-1, metavar="[OP|KEY]...", shell_complete=completed_names.stored)
@key_option
@json_option
def push_command(url: str, names: Sequence[str], key: str, as_json: bool) -> None:
    """Publish the entries of the cache: all of them, or those of some ops or keys.

    What was built with your own CXXFLAGS, CPPFLAGS or LDFLAGS is published only with ?flags=1 in the URL.

    \b
    Examples:
      opforge remote push file:///shared/ops CPUAdam
      opforge remote push https://cache.example/ops --key ci
    """
    from opforge.cache.current import own_store
    from opforge.cache.layout import Layout
    from opforge.cli.cache.entries import matching_entries
    from opforge.cli.progress import reporter
    from opforge.errors import OpforgeError
    from opforge.remote import publish, withdrawals
    from opforge.remote.signatures import keys

    remote, store = opened(url)
    layout: Layout = own_store().layout
    signer = None if remote.is_unsigned else keys.signer(key)
    pushed, failed = list[publish.Pushed](), list[tuple[str, str]]()
    entries = matching_entries(layout, names)
    if signer:  # a store that is away, or a key that does not sign, is one error and not one for each entry
        withdrawals.publish(store, signer, signer(b"").name)
    with reporter(1, quiet=as_json or not is_terminal(sys.stderr)) as progress:
        progress.begin("push")
        for number, entry in enumerate(entries):
            progress.step("push", number, len(entries), entry.op)
            try:
                folder = layout.entry(entry.key)
                pushed.append(publish.push(store, remote, folder, publish.description_of(folder), signer))
            except (OpforgeError, OSError) as error:
                failed.append((f"{entry.op} {entry.key[:12]}", error_text(error)))
    if as_json:
        problems = [{"entry": entry, "reason": reason} for entry, reason in failed]
        emit_json({"pushed": [entry._asdict() for entry in pushed], "failed": problems})
    else:
        for result in pushed:
            verb = "pushed" if result.is_new else "had already"
            click.echo(f"{verb} {result.op} {result.entry[:12]}, {size_text(result.size)}")
        for name, reason in failed:
            click.echo(f"error: {name}: {reason}", err=True)
        click.echo(f"{counted(sum(result.is_new for result in pushed), 'entry', 'entries')} pushed to {remote}")
    sys.exit(FAILED if failed else OK)


@group.command("ls", cls=Guarded)
@url_argument
@json_option
def ls_command(url: str, as_json: bool) -> None:
    """List what a remote holds: ops and packages. Signatures are not verified: see `opforge remote verify`.

    \b
    Example:
      opforge remote ls file:///shared/ops
    """
    from opforge.remote import maintenance

    _remote, store = opened(url)
    listed = list(maintenance.items(store))
    if as_json:
        return emit_json([item.to_json() for item in listed])
    rows = [
        (
            item.kind,
            item.name or f"({item.problem})",
            item.target,
            size_text(item.size),
            " ".join(item.signers) or "-",
            f"{item.label} (withdrawn: {item.withdrawn})" if item.withdrawn else item.label,
        )
        for item in listed
    ]
    columns = ("KIND", "NAME", "TARGET", "SIZE", "SIGNED BY", "ENTRY OR VERSION")
    return show_table(columns, rows, numbers=("SIZE",), optional="ENTRY OR VERSION")


@group.command("verify", cls=Guarded)
@url_argument
@json_option
def verify_command(url: str, as_json: bool) -> None:
    """Check every statement of a remote and its blobs, with the keys that are trusted here.

    The exit code is 1 if one would not be accepted.

    \b
    Example:
      opforge remote verify https://ops.example/ops
    """
    from opforge.cli.progress import reporter
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


@group.command("gc", cls=Guarded)
@url_argument
@click.option(
    "--unused-for", type=age, help="Also remove offers to which nothing was added for this long, such as 90d."
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@json_option
def gc_command(url: str, unused_for: float | None, dry_run: bool, as_json: bool) -> None:
    """Remove the blobs and statements that nothing names and that are older than a day.

    \b
    Examples:
      opforge remote gc file:///shared/ops
      opforge remote gc file:///shared/ops --unused-for 90d
    """
    from opforge.remote import maintenance

    _remote, store = opened(url)
    removed = list((maintenance.unused if dry_run else maintenance.collect)(store, time.time(), unused_for))
    if as_json:
        records: list[dict[str, Any]] = [item._asdict() for item in removed]
        return emit_json({"removed": records, "dry_run": dry_run})
    for item in removed:
        click.echo(f"{'would remove' if dry_run else 'removed'} {item.name}, {size_text(item.size)}: {item.reason}")
    size = size_text(sum(item.size for item in removed))
    return click.echo(f"{counted(len(removed), 'object', 'objects')}, {size}")
