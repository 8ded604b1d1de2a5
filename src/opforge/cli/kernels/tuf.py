"""`opforge tuf`: registries whose indexes are signed by The Update Framework."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from opforge.cli.guard import Guarded, GuardedGroup, json_option
from opforge.cli.output import OutputFile, emit_json
from opforge.errors import PublishError

if TYPE_CHECKING:
    from opforge.remote.stores.protocol import ObjectStore
    from opforge.remote.tuf.roots import Root
    from opforge.remote.tuf.state import Pairs

root_key_option = click.option(
    "--root-key", "root_keys", multiple=True, required=True, metavar="NAME", help="A key of the root. Repeatable."
)
threshold_option = click.option(
    "--threshold", type=click.IntRange(min=1), default=1, help="How many root keys must sign the next root."
)
key_option = click.option(
    "--key", "keys", multiple=True, required=True, metavar="NAME", help="A key that may publish. Repeatable."
)
out_option = click.option(
    "--out", type=OutputFile(dir_okay=False), required=True, help="Write the root metadata into this file."
)


@click.group("tuf", cls=GuardedGroup)
def group() -> None:
    """Protect a registry of packages against indexes that are held back or rolled back."""


@group.command("init", cls=Guarded)
@click.argument("remote")
@root_key_option
@threshold_option
@key_option
@out_option
@json_option
def init(remote: str, root_keys: Sequence[str], threshold: int, keys: Sequence[str], out: str, as_json: bool) -> None:
    """Begin the TUF metadata of a registry, and trust its root here.

    Root keys sign new keys, and are kept apart; each key of --key may publish. All are keys of `opforge key new`. Give
    the file that is written to those who install: opforge tuf trust.

    \b
    Example:
      opforge tuf init s3://kernels/ops --root-key root1 --root-key root2 --key ci --out root.json
    """
    _require_folder(out)
    store = _store(remote)
    _require()
    from opforge.remote.tuf import metadata

    data = _checked(metadata.begin, store, _pairs(root_keys), threshold, _pairs(keys))
    _write(store, data, out, as_json)


@group.command("rotate", cls=Guarded)
@click.argument("remote")
@click.option(
    "--old-root-key", "old_keys", multiple=True, required=True, metavar="NAME", help="A present root key. Repeatable."
)
@root_key_option
@threshold_option
@key_option
@out_option
@json_option
def rotate(
    remote: str,
    old_keys: Sequence[str],
    root_keys: Sequence[str],
    threshold: int,
    keys: Sequence[str],
    out: str,
    as_json: bool,
) -> None:
    """Replace the keys of a registry, or renew its root, which is valid for a year.

    The present root keys and the new ones sign the new root. Those who trust an older root follow by themselves. To
    replace the key that publishes, name the present one and the new one, and later the new one alone: then nobody who
    installs meanwhile is refused.

    \b
    Example:
      opforge tuf rotate s3://kernels/ops --old-root-key root1 --root-key root1 --key ci --key ci2 --out root.json
      opforge tuf rotate s3://kernels/ops --old-root-key root1 --root-key root1 --key ci2 --out root.json
    """
    _require_folder(out)
    store = _store(remote)
    _require()
    from opforge.remote.tuf import rotation

    old = [signer for _public, signer in _pairs(old_keys)]
    arguments = (store, _trusted(store), old, _pairs(root_keys), threshold, _pairs(keys))
    _write(store, _checked(rotation.rotate, *arguments), out, as_json, is_next=True)


@group.command("refresh", cls=Guarded)
@click.argument("remote")
@click.option("--key", default="", help="Sign with this key; see opforge key.")
@click.option("--days", type=click.FloatRange(min=0, min_open=True), default=7.0, help="How long it is valid.")
@json_option
def refresh(remote: str, key: str, days: float, as_json: bool) -> None:
    """Renew the timestamp of a registry. Publishing does so, too; a job runs this if nothing is published for a week.

    \b
    Example:
      opforge tuf refresh s3://kernels/ops
    """
    from opforge.remote.signatures import keys

    store = _store(remote)
    _require()
    from opforge.remote.tuf import metadata

    until = metadata.refresh(store, _trusted(store), keys.signer(key), days)
    if as_json:
        emit_json({"remote": store.url, "until": until.isoformat()})
    else:
        click.echo(f"the timestamp of {store.url} is valid until {until:%Y-%m-%d %H:%M} UTC")


@group.command("trust", cls=Guarded)
@click.argument("remote")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@json_option
def trust(remote: str, file: str, as_json: bool) -> None:
    """Trust the root metadata in FILE for a registry.

    From then on only packages are accepted there whose metadata is signed by the keys that FILE names. Get the file
    from the registry's owner, not from the registry.

    \b
    Example:
      opforge tuf trust https://kernels.example/ops root.json
    """
    from opforge.cache.filesystem.files import read_file
    from opforge.remote.tuf import roots

    store = _store(remote)
    path = roots.trust(store.url, read_file(file))
    if as_json:
        emit_json({"remote": store.url, "path": path})
    else:
        click.echo(f"trusted for {store.url}")


def _store(url: str) -> ObjectStore:
    from opforge import settings
    from opforge.remote import remotes
    from opforge.remote.stores import open_store

    return open_store(remotes.parse(url, "REMOTE").url, settings.offline())


def _require() -> None:
    from opforge.remote.tuf import client

    client.require()


def _require_folder(out: str) -> None:
    """Raises click.UsageError if a file cannot be written: without it nobody could trust what is begun."""
    folder = os.path.dirname(os.path.abspath(out))
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise click.UsageError(f"--out {out!r} cannot be written: expected a file in a folder of yours.")


def _pairs(names: Sequence[str]) -> Pairs:
    from opforge.remote.signatures import keys, signing

    return [(signing.public_of(keys.read(name)), keys.signer(name)) for name in names]


def _trusted(store: ObjectStore) -> Root:
    from opforge.remote.tuf import roots

    root = roots.of_store(store)
    if root is None:
        hint = "Trust it: opforge tuf trust URL FILE"
        raise PublishError("TUF metadata", store.url, "you trust no root metadata of it", hint)
    return root


def _checked(function: Callable[..., bytes], *arguments: object) -> bytes:
    try:
        return function(*arguments)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _write(store: ObjectStore, data: bytes, out: str, as_json: bool, is_next: bool = False) -> None:
    from opforge.machine_folder import write_file
    from opforge.remote.tuf import roots

    write_file(out, data)
    path = roots.trust(store.url, data, is_next)
    if as_json:
        emit_json({"remote": store.url, "root": out, "path": path})
    else:
        click.echo(f"wrote {out}, and trusted it for {store.url}: give it to those who install")
