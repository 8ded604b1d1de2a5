"""What publishing does in a store with TUF metadata: what is changed in a topic is signed there, too."""

from __future__ import annotations

from collections.abc import Callable

from opforge.errors import PublishError
from opforge.remote.signatures.keys import Signer
from opforge.remote.stores.protocol import ObjectStore
from opforge.remote.topics import ListingEdit

from . import FOLDER, MAX_BYTES, client, roots


def recorder(store: ObjectStore, kind: str, topic: str, signer: Signer | None) -> Callable[[ListingEdit], bool]:
    """Returns what makes a change of a topic in the signed topic, too.

    It does nothing in a registry without TUF metadata. Raises PublishError or SignatureError if this user
    could not sign it, before anything is changed.
    """
    trusted = roots.read(store.url)
    if trusted is None:
        if store.get(f"{FOLDER}/1.root.json", MAX_BYTES) is None:
            return lambda _edit: False
        hint = "Get the root metadata from its owner, and trust it: opforge tuf trust URL FILE"
        raise PublishError(topic, store.url, "it has TUF metadata, of which you trust no root", hint)
    if signer is None:
        raise PublishError(topic, store.url, "its TUF metadata must be signed", "Leave out unsigned=1")
    client.require()
    from . import metadata

    sign, root = signer, trusted
    metadata.require_key(store, root, sign)
    return lambda edit: metadata.record(store, root, kind, topic, sign, edit)
