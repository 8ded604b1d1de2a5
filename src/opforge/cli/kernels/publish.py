"""`opforge publish`: packages in a remote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

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
