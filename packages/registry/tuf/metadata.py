"""Writes TUF metadata: begins it, records the index of a name, renews the timestamp, replaces keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from tuf.api.exceptions import RepositoryError
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

from opforge.errors import PublishError, SignatureError
from opforge.packages.registry import index
from opforge.remote.signatures import signing
from opforge.remote.signatures.keys import Signer
from opforge.remote.stores.protocol import ObjectStore

from . import FOLDER, MAX_BYTES, TIMESTAMP, file_of, target_path
from .state import ATTEMPTS, ONLINE, OTHER_DAYS, ROOT_DAYS, TIMESTAMP_DAYS, Roots, State, expiry, key_of, sign

BITS = 8
"""2 to the power of this is the number of bins that the names are spread over."""


def begin(store: ObjectStore, roots: Roots, threshold: int, online: signing.Named, signer: Signer) -> bytes:
    """Begins the metadata of a registry, and returns the root metadata that users must trust.

    `roots` are the root keys, of which `threshold` must sign a new root; `online` publishes. Raises PublishError if the
    registry has such metadata already, ValueError.
    """
    name = f"{FOLDER}/1.root.json"
    if store.get(name, MAX_BYTES) is not None:
        raise PublishError("the root metadata", store.url, "it has one already", "Replace its keys: opforge tuf rotate")
    root = _root(1, [public for public, _signer in roots], threshold, online)
    for public, root_signer in roots:
        sign(root, root_signer, [key_of(public)], append=True)
    state = State(store, root)
    key = key_of(online)
    bins = SuccinctRoles([key.keyid], 1, BITS, "bin")
    targets = Metadata(Targets(1, expires=expiry(OTHER_DAYS), delegations=Delegations({key.keyid: key}, None, bins)))
    snapshot = Metadata(Snapshot(1, expires=expiry(OTHER_DAYS)))
    snapshot.signed.meta["targets.json"] = MetaFile(state.put(targets, "targets", signer))
    for role in bins.get_roles():
        empty = Metadata(Targets(1, expires=expiry(OTHER_DAYS)))
        snapshot.signed.meta[f"{role}.json"] = MetaFile(state.put(empty, role, signer))
    timestamp = Metadata(Timestamp(1, expires=expiry(TIMESTAMP_DAYS)))
    timestamp.signed.snapshot_meta = MetaFile(state.put(snapshot, "snapshot", signer))
    sign(timestamp, signer, [key])
    data = root.to_bytes()
    if not (store.put_if_absent(TIMESTAMP, timestamp.to_bytes()) and store.put_if_absent(name, data)):
        raise PublishError("the root metadata", store.url, "another has just begun it", "Use that one")
    return data


def _root(version: int, keys: Sequence[signing.Named], threshold: int, online: signing.Named) -> Metadata[Root]:
    if not 0 < threshold <= len({key.data for key in keys}):
        raise ValueError(f"{threshold} of {len(keys)} root keys cannot sign: name more keys, or a lower threshold")
    root = Root(version, expires=expiry(ROOT_DAYS), consistent_snapshot=True)
    for key in keys:
        root.add_key(key_of(key), Root.type)
    root.roles[Root.type].threshold = threshold
    for role in ONLINE:
        root.add_key(key_of(online), role)
    return Metadata(root)


def record(store: ObjectStore, trusted: bytes, name: str, signer: Signer) -> bool:
    """Makes the index of a name, as it is in the store, a target; returns whether that changed anything.

    Raises PublishError, SignatureError, StoreError.
    """
    path = target_path(name)
    for _attempt in range(ATTEMPTS):
        state = State.read(store, trusted)
        timestamp, version = state.timestamp()
        snapshot = state.snapshot(timestamp)
        targets = state.targets(snapshot)
        assert targets.signed.delegations and targets.signed.delegations.succinct_roles
        role = targets.signed.delegations.succinct_roles.get_role_for_target(path)
        holder = state.bin(role, snapshot, targets)
        stored = store.get(index.file_name(name), index.MAX_BYTES)
        if stored is None:
            raise PublishError(name, store.url, "it has no index", "Publish a release of it")
        target = TargetFile.from_data(path, stored.data, ["sha256"])
        before = holder.signed.targets.get(path)
        if before is not None and before.hashes == target.hashes:
            return False
        store.put_if_absent(file_of(name, target.hashes["sha256"]), stored.data)
        holder.signed.targets[path] = target
        snapshot.signed.meta[f"{role}.json"] = MetaFile(state.put(holder, role, signer))
        timestamp.signed.snapshot_meta = MetaFile(state.put(snapshot, "snapshot", signer))
        if state.renew(timestamp, version, signer):
            return True
    raise PublishError(name, store.url, "others keep changing its TUF metadata", "Try again")


def refresh(store: ObjectStore, trusted: bytes, signer: Signer, days: float = TIMESTAMP_DAYS) -> datetime:
    """Renews the timestamp; returns until when it is valid. Raises PublishError, SignatureError, StoreError."""
    for _attempt in range(ATTEMPTS):
        state = State.read(store, trusted)
        timestamp, version = state.timestamp()
        if state.renew(timestamp, version, signer, days):
            return timestamp.signed.expires
    raise PublishError("the timestamp", store.url, "others keep changing it", "Try again")


def _signed_by_any(state: State) -> tuple[Metadata[Timestamp], str]:
    """Returns the timestamp, which an older root's key may have signed: who replaced the root may have been killed."""
    for root in reversed(state.older):
        try:
            return state.timestamp()
        except SignatureError:
            state.verifier = root
    return state.timestamp()


def rotate(
    store: ObjectStore,
    trusted: bytes,
    old: Sequence[Signer],
    roots: Roots,
    threshold: int,
    online: signing.Named,
    signer: Signer,
    report: Callable[[str], None] = lambda _text: None,
) -> bytes:
    """Replaces the keys by new root metadata, which the old root keys and the new ones sign; returns it.

    What the old key had signed is signed by the new one before the new root is there. Raises PublishError,
    SignatureError, StoreError, ValueError.
    """
    state = State.read(store, trusted)
    before = state.root
    timestamp, version = _signed_by_any(state)
    snapshot = state.snapshot(timestamp)
    targets = state.targets(snapshot)
    assert targets.signed.delegations and targets.signed.delegations.succinct_roles
    bins = targets.signed.delegations.succinct_roles
    root = _root(before.signed.version + 1, [public for public, _signer in roots], threshold, online)
    for root_signer in old:
        sign(root, root_signer, state.keys(Root.type), append=True)
    for public, root_signer in roots:
        sign(root, root_signer, [key_of(public)], append=True)
    for verifier in (before, root):
        try:
            verifier.signed.verify_delegate(Root.type, root.signed_bytes, root.signatures)
        except RepositoryError as error:
            problem = f"too few root keys have signed the new one: {error}"
            raise SignatureError(store.url, problem, "Name more of the old keys with --old-root-key") from error
    holders = {role: state.bin(role, snapshot, targets) for role in bins.get_roles()}
    state.root = root
    key = key_of(online)
    if key.keyid not in bins.keyids:
        report(f"sign {len(holders)} files by {online.name}")
        delegated = SuccinctRoles([key.keyid], 1, bins.bit_length, bins.name_prefix)
        targets.signed.delegations = Delegations({key.keyid: key}, None, delegated)
        snapshot.signed.meta["targets.json"] = MetaFile(state.put(targets, "targets", signer))
        for role, holder in holders.items():
            snapshot.signed.meta[f"{role}.json"] = MetaFile(state.put(holder, role, signer))
        timestamp.signed.snapshot_meta = MetaFile(state.put(snapshot, "snapshot", signer))
    data = root.to_bytes()
    if not store.put_if_absent(f"{FOLDER}/{root.signed.version}.root.json", data):
        raise PublishError("the root metadata", store.url, "another has just replaced it", "Try again")
    if not state.renew(timestamp, version, signer):
        raise PublishError("the timestamp", store.url, "another has just changed it", "Run: opforge tuf rotate again")
    return data
