"""Writes TUF metadata: begins it, records a topic, renews the timestamp. `rotation` replaces keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from securesystemslib.signer import SSlibKey
from tuf.api.metadata import (
    Delegations,
    Metadata,
    MetaFile,
    Root,
    Snapshot,
    SuccinctRoles,
    TargetFile,
    Targets,
    Timestamp,
)

from opforge.errors import PublishError
from opforge.remote import topics
from opforge.remote.signatures import signing
from opforge.remote.signatures.keys import Signer
from opforge.remote.stores.protocol import ObjectStore

from . import FOLDER, MAX_BYTES, TIMESTAMP, client, file_of
from .roots import Root as TrustedRoot
from .state import (
    ONLINE,
    OTHER_DAYS,
    ROOT_DAYS,
    TIMESTAMP_DAYS,
    KeySigner,
    Pairs,
    State,
    delegated_keys,
    expiry,
    key_of,
    keys_of,
    sign,
)

BITS = 8
"""2 to the power of this is the number of bins that the names are spread over."""
FIRST_ROOT = f"{FOLDER}/1.root.json"


def begin(store: ObjectStore, roots: Pairs, threshold: int, online: Pairs) -> bytes:
    """Begins the metadata of a registry, and returns the root metadata that users must trust.

    `roots` are the root keys, of which `threshold` must sign a new root; each of the `online` keys may publish, and the
    first signs now. One that was killed is repeated with the same keys. Raises PublishError if the registry has such
    metadata already, ValueError.
    """
    root = new_root(1, roots, threshold, [public for public, _signer in online])
    for public, root_signer in roots:
        sign(root, root_signer, [key_of(public)], append=True)
    data = root.to_bytes()
    if not store.put_if_absent(FIRST_ROOT, data):
        data = _begun(store, root)
    state = State(store, root)
    signer, keys = online[0][1], keys_of(root.signed, *ONLINE)
    targets = Metadata(
        Targets(1, expires=expiry(OTHER_DAYS), delegations=delegations(keys, SuccinctRoles([], 1, BITS, "bin")))
    )
    snapshot = Metadata(Snapshot(1, expires=expiry(OTHER_DAYS)))
    snapshot.signed.meta["targets.json"] = MetaFile(state.put(targets, "targets", signer, keys))
    for role in state.bins(targets).get_roles():
        empty = Metadata(Targets(1, expires=expiry(OTHER_DAYS)))
        snapshot.signed.meta[f"{role}.json"] = MetaFile(state.put(empty, role, signer, keys))
    timestamp = Metadata(Timestamp(1, expires=expiry(TIMESTAMP_DAYS)))
    timestamp.signed.snapshot_meta = MetaFile(state.put(snapshot, "snapshot", signer, keys))
    sign(timestamp, signer, keys)
    if not store.put_if_absent(TIMESTAMP, timestamp.to_bytes()):
        raise _begun_already(store)
    return data


def _begun(store: ObjectStore, root: Metadata[Root]) -> bytes:
    """Returns the root of one who was killed before there was a timestamp. Raises PublishError for another's."""
    stored = store.get(FIRST_ROOT, MAX_BYTES)
    if stored is not None and store.get(TIMESTAMP, MAX_BYTES) is None:
        there = Metadata[Root].from_bytes(stored.data)
        if there.signed.roles == root.signed.roles and there.signed.keys == root.signed.keys:
            return stored.data
    raise _begun_already(store)


def _begun_already(store: ObjectStore) -> PublishError:
    return PublishError("the root metadata", store.url, "it has one already", "Replace its keys: opforge tuf rotate")


def new_root(version: int, roots: Pairs, threshold: int, online: Sequence[signing.Named]) -> Metadata[Root]:
    """Returns new root metadata, which nobody has signed. Raises ValueError if too few keys are named."""
    if not 0 < threshold <= len({key.data for key, _signer in roots}):
        raise ValueError(f"{threshold} of {len(roots)} root keys cannot sign: name more keys, or a lower threshold")
    root = Root(version, expires=expiry(ROOT_DAYS), consistent_snapshot=True)
    for key, _signer in roots:
        root.add_key(key_of(key), Root.type)
    root.roles[Root.type].threshold = threshold
    for role in ONLINE:
        for key in online:
            root.add_key(key_of(key), role)
    return Metadata(root)


def delegations(keys: Sequence[SSlibKey], bins: SuccinctRoles) -> Delegations:
    """Returns the delegation of these bins to keys, each of which may sign them alone."""
    delegated = SuccinctRoles([key.keyid for key in keys], 1, bins.bit_length, bins.name_prefix)
    return Delegations({key.keyid: key for key in keys}, None, delegated)


def require_key(store: ObjectStore, trusted: TrustedRoot, signer: Signer) -> None:
    """Raises SignatureError if the key that signs may not publish; StoreError."""
    KeySigner(signer, keys_of(State.read(store, trusted).root.signed, *ONLINE)).sign(b"")


def record(
    store: ObjectStore, trusted: TrustedRoot, path: str, signer: Signer, change: Callable[[bytes | None], bytes | None]
) -> bool:
    """Makes a change of a target, and signs it; returns whether it changed.

    `change` gets the bytes that are signed, None if none are, and returns the new ones, None if nothing has to change.
    Raises PublishError, SignatureError, StoreError, and what `change` raises.
    """
    for _attempt in topics.attempts():
        state = State.read(store, trusted)
        timestamp, version = state.timestamp()
        snapshot = state.snapshot(timestamp)
        targets = state.targets(snapshot)
        role = state.bins(targets).get_role_for_target(path)
        holder = state.bin(role, snapshot, targets)
        listed = holder.signed.targets.get(path)
        data = change(None if listed is None else client.read_target(store, listed))
        if data is None:
            return False
        target = TargetFile.from_data(path, data, ["sha256"])
        store.put_if_absent(file_of(path, target.hashes["sha256"]), data)
        holder.signed.targets[target.path] = target
        keys = keys_of(state.root.signed, *ONLINE)
        number = state.put(holder, role, signer, delegated_keys(targets.signed))
        snapshot.signed.meta[f"{role}.json"] = MetaFile(number)
        timestamp.signed.snapshot_meta = MetaFile(state.put(snapshot, "snapshot", signer, keys))
        if state.renew(timestamp, version, signer, keys):
            return True
    raise PublishError(path, store.url, "others keep changing its TUF metadata", "Try again")


def refresh(store: ObjectStore, trusted: TrustedRoot, signer: Signer, days: float = TIMESTAMP_DAYS) -> datetime:
    """Renews the timestamp; returns until when it is valid. Raises PublishError, SignatureError, StoreError."""
    for _attempt in topics.attempts():
        state = State.read(store, trusted)
        timestamp, version = state.timestamp()
        if state.renew(timestamp, version, signer, keys_of(state.root.signed, Timestamp.type), days):
            return timestamp.signed.expires
    raise PublishError("the timestamp", store.url, "others keep changing it", "Try again")
