"""What publishing does in a registry with TUF metadata: what is changed in an index is signed there, too."""

from __future__ import annotations

from collections.abc import Callable

from opforge.errors import PublishError
from opforge.packages.registry.index import Edit
from opforge.remote.signatures.keys import Signer
from opforge.remote.stores.protocol import ObjectStore

from . import FOLDER, MAX_BYTES, client, roots


def recorder(store: ObjectStore, name: str, signer: Signer | None) -> Callable[[Edit], bool]:
    """Returns what makes a change of the index of a name in the signed index, too.

    It does nothing in a registry without TUF metadata. Raises PublishError or SignatureError if this user
    could not sign it, before anything is changed.
    """
    trusted = roots.read(store.url)
    if trusted is None:
        if store.get(f"{FOLDER}/1.root.json", MAX_BYTES) is None:
            return lambda _edit: False
        hint = "Get the root metadata from its owner, and trust it: opforge tuf trust URL FILE"
        raise PublishError(name, store.url, "it has TUF metadata, of which you trust no root", hint)
    if signer is None:
        raise PublishError(name, store.url, "its TUF metadata must be signed", "Leave out unsigned=1")
    client.require()
    from . import metadata

    sign, root = signer, trusted
    metadata.require_key(store, root, sign)
    return lambda edit: metadata.record(store, root, name, sign, edit)
