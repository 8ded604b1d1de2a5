"""`opforge publish`, `yank` and `unyank`: packages in a remote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from opforge.cli import messages
from opforge.cli.guard import Guarded, json_option
from opforge.cli.output import emit_json, size_text

from .transfers import Transfers

if TYPE_CHECKING:
    from opforge.remote.remotes import Remote
    from opforge.remote.stores.protocol import ObjectStore


def _store(url: str) -> tuple[Remote, ObjectStore]:
    from opforge import settings
    from opforge.remote import remotes
    from opforge.remote.stores import open_store

    remote = remotes.parse(url, "REMOTE")
    return remote, open_store(remote.url, settings.offline())


key_option = click.option("--key", default="", help="Sign with this key; see opforge key.")


@click.command("publish", cls=Guarded)
@click.argument("remote")
@click.argument("folder", default=".", type=click.Path(exists=True, file_okay=False), metavar="[FOLDER]")
@key_option
@click.option("--allow-dirty", is_flag=True, help="Publish although the sources differed from their commit.")
@json_option
def publish(remote: str, folder: str, key: str, allow_dirty: bool, as_json: bool) -> None:
    """Publish the package that `opforge pack` wrote into FOLDER.

    Its blobs, the signed release and the index of its name are put in this order, so one that is interrupted leaves
    nothing visible. The same package again changes nothing; a version that has other files is refused.

    \b
    Examples:
      opforge publish s3://kernels/ops
      opforge publish file:///shared/kernels kernels/relu --key ci
    """
    from opforge.packages.registry.publish import publish as publish_folder
    from opforge.remote.signatures import keys

    parsed, store = _store(remote)
    signer = None if parsed.is_unsigned else keys.signer(key)
    with Transfers(as_json) as transfers:
        done = publish_folder(store, folder, signer, allow_dirty, transfers)
    if as_json:
        emit_json({**done._asdict(), "version": str(done.version)})
    else:
        state = "published" if done.is_new else "is there already, unchanged:"
        click.echo(f"{state} {done.name} {done.version}, {size_text(done.size)}, release {done.digest[:12]}")


@click.command("yank", cls=Guarded)
@click.argument("remote")
@click.argument("name")
@click.argument("version")
@click.option("--reason", required=True, help="Why nobody should choose it any more; shown to those who have it.")
@key_option
@json_option
def yank(remote: str, name: str, version: str, reason: str, key: str, as_json: bool) -> None:
    """Mark a release as withdrawn: nothing resolves to it, and lock files that name it go on working, with a warning.

    \b
    Example:
      opforge yank s3://kernels/ops acme/relu 2.3 --reason "wrong for empty tensors"
    """
    _mark(remote, name, version, reason, key, as_json)


@click.command("unyank", cls=Guarded)
@click.argument("remote")
@click.argument("name")
@click.argument("version")
@key_option
@json_option
def unyank(remote: str, name: str, version: str, key: str, as_json: bool) -> None:
    """Take back a yank.

    \b
    Example:
      opforge unyank s3://kernels/ops acme/relu 2.3
    """
    _mark(remote, name, version, None, key, as_json)


def _mark(remote: str, name: str, version: str, reason: str | None, key: str, as_json: bool) -> None:
    from opforge.packages.form import names
    from opforge.packages.form import version as versions
    from opforge.packages.registry import publish as registry
    from opforge.remote.signatures import keys
    from opforge.remote.tuf import roots

    _parsed, store = _store(remote)
    number = versions.parse(version, "VERSION")
    # An index alone has no signature.
    is_signed = roots.read(store.url) is not None
    signer = keys.signer(key) if is_signed else None
    if key and not is_signed:
        messages.show("note", f"--key {key} is not used: {store.url} has no TUF metadata, which would be signed")
    names.check(name, "NAME")
    if reason is None:
        changed = registry.unyank(store, name, number, signer)
    else:
        changed = registry.yank(store, name, number, reason, signer)
    if as_json:
        emit_json({"name": name, "version": str(number), "yanked": reason or "", "changed": changed})
    else:
        word = "unyanked" if reason is None else "yanked"
        click.echo(f"{word} {name} {number}" if changed else f"{name} {number} was {word} already")
