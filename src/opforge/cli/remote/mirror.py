"""`opforge mirror`: copies a remote to another store."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import click

from opforge.cli import kinds, messages
from opforge.cli.completion import names as completed_names
from opforge.cli.guard import FAILED, OK, Guarded, json_option
from opforge.cli.kernels.transfers import Transfers
from opforge.cli.output import counted, emit_json, size_text

from .stores import key_option, opened

if TYPE_CHECKING:
    from opforge.remote.mirror import Copied

HUB = "hf:"
"""Prefix of the name of a kernel of the hub."""
CACHE = "cache:"
"""The word for the cache of this machine."""


@click.command("mirror", cls=Guarded)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=completed_names.stored)
@key_option
@click.option(
    "--unverified", is_flag=True, help="Sign a kernel of the hub whose maker no rule of the trust file verifies."
)
@json_option
def command(source: str, target: str, names: Sequence[str], key: str, unverified: bool, as_json: bool) -> None:
    """Copy artifacts that TO lacks from the remote FROM, with signatures and blobs: all, or the named ones.

    NAME is an op, a package as ORG/NAME, or another kind as KIND:NAME. Copied artifacts must be signed by a key that is
    trusted here, and keep their signatures: no secret key is needed. Nothing in TO is replaced. With unsigned=1 in both
    URLs nothing is verified. FROM may be a kernel of the Hugging Face hub, at one version: it is published to TO as a
    release of your key. It may be `cache:`, the cache of this machine: your key signs artifacts that were made here,
    and fetched ones keep their signatures.

    \b
    Examples:
      opforge mirror https://ops.example/ops file:///shared/ops
      opforge mirror s3://kernels/ops file:///shared/ops CPUAdam acme/relu
      opforge mirror hf:kernels-community/activation@3 s3://kernels/ops --key ci
      opforge mirror cache: file:///media/usb/ops
    """
    if source.startswith(HUB):
        if names:
            raise click.UsageError("a kernel of the hub is one package: leave out names.")
        return _of_hub(source, target, key, unverified, as_json)
    if unverified:
        verified = "what was fetched into the cache" if source == CACHE else "what a remote holds"
        raise click.UsageError(f"--unverified is for a kernel of the hub: {verified} is verified.")
    if source == CACHE:
        return _of_cache(target, names, key, as_json)
    if key:
        raise click.UsageError("--key signs a kernel of the hub, and cache: what a remote holds keeps its signatures.")
    return _of_store(source, target, names, as_json)


def _of_store(source: str, target: str, names: Sequence[str], as_json: bool) -> None:
    """Copies a store, or what of it is named."""
    from opforge.packages.form.names import check
    from opforge.remote import mirror

    named = kinds.by_kind(names, "mirror")
    # A server that cannot list its contents is asked for packages by their names.
    packages = [check(name, "NAME") for name in named["package"] if kinds.is_plain(name)]
    named["package"] = [name for name in named["package"] if not kinds.is_plain(name)]
    wanted = {kind: of_kind for kind, of_kind in named.items() if of_kind}
    (remote, there), (to, here), offered = opened(source), opened(target), dict[str, set[str]]()
    found, is_unsigned = set[tuple[str, str]](), remote.is_unsigned and to.is_unsigned

    def accepts(kind: str, name: str, label: str) -> bool:
        offered.setdefault(kind, set()).add(name)
        meant = {(kind, one) for one in wanted.get(kind, ()) if kinds.is_meant(kinds.of(kind), name, label, one)}
        found.update(meant)
        return bool(meant) or not names

    copied, problems = list[mirror.Copied](), list[str]()
    with Transfers(as_json) as transfers:
        for kind in wanted if names else [""]:
            copied += mirror.copy(there, here, accepts, transfers, kind, is_unsigned)
        copied += mirror.copy_named(there, here, "package", packages, transfers, is_unsigned)
    for kind, of_kind in wanted.items():
        held = ", ".join(sorted(offered.get(kind, ()))) or f"no {kind}"
        problems += [
            f"{remote} does not offer {one!r}. It offers: {held}" for one in of_kind if (kind, one) not in found
        ]
    _end(copied, problems, as_json)


def _end(copied: Sequence[Copied], further: Sequence[str], as_json: bool) -> NoReturn:
    """Prints the copied artifacts and all problems, and ends the command."""
    problems = [*(f"{one.kind} {one.topic}: {problem}" for one in copied for problem in one.problems), *further]
    if as_json:
        emit_json({"copied": [topic._asdict() for topic in copied], "problems": problems})
    else:
        for problem in problems:
            click.echo(f"error: {problem}", err=True)
        size = size_text(sum(topic.size for topic in copied))
        click.echo(f"{counted(sum(topic.statements for topic in copied), 'statement', 'statements')} copied, {size}")
    sys.exit(FAILED if problems else OK)


def _of_cache(target: str, names: Sequence[str], key: str, as_json: bool) -> None:
    """Copies the cache of this machine, or what of it is named."""
    from opforge.cache.current_store import own_store
    from opforge.remote import cache_mirror
    from opforge.remote.signatures import keys

    named = kinds.by_kind(names, "mirror")
    if named["package"]:
        raise click.UsageError(
            f"{named['package'][0]} is a package, and cache: holds none: name the remote that has it."
        )
    chosen = {one.path for kind, of_kind in named.items() if of_kind for one in kinds.stored(kinds.of(kind), of_kind)}
    remote, there = opened(target)
    store = own_store()

    def signer() -> keys.Signer | None:
        return None if remote.is_unsigned else keys.signer(key)

    with Transfers(as_json) as transfers:
        copied = [*cache_mirror.copy(store.layout, there, remote, signer, transfers, chosen if names else None)]
    _end(copied, (), as_json)


def _of_hub(source: str, target: str, key: str, unverified: bool, as_json: bool) -> None:
    """Publishes a kernel of the hub."""
    from opforge.packages.project import hub_mirror
    from opforge.remote.signatures import keys

    asked = hub_mirror.parse(source)
    remote, store = opened(target)
    signer = None if remote.is_unsigned else keys.signer(key)
    with Transfers(as_json) as transfers:
        done, needs = hub_mirror.mirror(store, asked, signer, transfers, unverified)
    if as_json:
        return emit_json({**done._asdict(), "version": str(done.version), "needs": needs})
    state = "published" if done.is_new else "is there already, unchanged:"
    click.echo(f"{state} {done.name} {done.version}, {size_text(done.size)}, release {done.digest[:12]}")
    for needed in needs:
        messages.show("note", f"it needs {needed}: mirror that too, if {remote} lacks it")
    return None
