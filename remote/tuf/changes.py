"""What publishing does in a store with TUF metadata: what is changed in a topic or a list is signed there, too."""

from __future__ import annotations

from collections.abc import Callable

from opforge.errors import PublishError
from opforge.remote import topics
from opforge.remote.signatures.keys import Signer
from opforge.remote.stores.protocol import ObjectStore
from opforge.remote.topics import Listing, ListingEdit

from . import FOLDER, MAX_BYTES, client, roots, target_path
from .roots import Root

Change = Callable[[bytes | None], bytes | None]
"""Gets the bytes that are signed, None if none are; returns the new ones, or None if nothing has to change."""
ROOT_HINT = "Get the root metadata from its owner, and trust it: opforge tuf trust URL FILE"


def is_covered(store: ObjectStore, root: Root | None) -> bool:
    """Returns whether TUF covers a store, of which this root is trusted.

    Raises PublishError if it has metadata, and no root of it is trusted; StoreError.
    """
    if root is None and store.get(f"{FOLDER}/1.root.json", MAX_BYTES) is not None:
        raise PublishError("what is changed", store.url, "it has TUF metadata, of which you trust no root", ROOT_HINT)
    return root is not None


def record(store: ObjectStore, root: Root | None, path: str, signer: Signer, change: Change) -> bool:
    """Changes a target, and signs it; returns whether it changed. Raises PublishError, SignatureError, StoreError."""
    assert root is not None  # `is_covered` has said so
    client.require()
    from . import metadata

    return metadata.record(store, root, path, signer, change)


def recorder(store: ObjectStore, kind: str, topic: str, signer: Signer | None) -> Callable[[ListingEdit], bool]:
    """Returns what makes a change of a topic in the signed topic, too.

    It does nothing in a registry without TUF metadata. Raises PublishError or SignatureError if this user
    could not sign it, before anything is changed.
    """
    root = roots.of_store(store)
    if not is_covered(store, root):
        return lambda _edit: False
    if signer is None or root is None:
        raise PublishError(topic, store.url, "its TUF metadata must be signed", "Leave out unsigned=1")
    client.require()
    from . import metadata

    sign, trusted = signer, root
    metadata.require_key(store, trusted, sign)

    def recorded(edit: ListingEdit) -> bool:
        return metadata.record(store, trusted, target_path(kind, topic), sign, _of_topic(store, kind, topic, edit))

    return recorded


def _of_topic(store: ObjectStore, kind: str, topic: str, edit: ListingEdit) -> Change:
    """Returns a change of a topic as one of the bytes that are signed.

    The topic beside it, which everybody can change who can write there, is taken as it is only if none is signed yet.
    """

    def change(there: bytes | None) -> bytes | None:
        plain = topics.read_named(store, kind, topic)
        signed = None if there is None else client.listing_of(store, there, kind, topic)
        before = signed or plain or Listing(kind, topic)
        edited = edit(before) or (before if signed is None else None)
        if edited is None:
            return None
        # Lock files hold the highest state that they have seen of either.
        sequence = max(before.sequence + 1, plain.sequence if plain else 0) if signed else edited.sequence
        return edited._replace(sequence=sequence).data()

    return change
