"""Replaces the keys of a registry. What a key has signed stays valid while the old root and the new one name it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, Targets, Timestamp

from opforge.errors import PublishError, SignatureError
from opforge.remote import topics
from opforge.remote.signatures.keys import Signer
from opforge.remote.stores.protocol import ObjectStore

from . import FOLDER, MAX_BYTES, TIMESTAMP
from .metadata import delegations, new_root
from .roots import Root as TrustedRoot
from .state import ONLINE, Pairs, State, key_of, keys_of, sign


def rotate(
    store: ObjectStore,
    trusted: TrustedRoot,
    old: Sequence[Signer],
    roots: Pairs,
    threshold: int,
    online: Pairs,
    report: Callable[[str], None] = lambda _text: None,
) -> bytes:
    """Replaces the keys by new root metadata, which the old root keys and the new ones sign; returns it.

    If the registry has one of the `online` keys already, that key signs what the new root needs before the new root is
    there: nobody who installs meanwhile is refused. Otherwise the old key may be a thief's: the new root comes first,
    and clients are refused until the new key has signed. Raises PublishError, SignatureError, StoreError, ValueError.
    """
    state = State.read(store, trusted)
    before = state.root
    root = new_root(before.signed.version + 1, roots, threshold, [public for public, _signer in online])
    _sign_root(store.url, root, before, old, roots)
    present = {key.keyid for key in keys_of(before.signed, *ONLINE)}
    shared = [signer for public, signer in online if key_of(public).keyid in present]
    signer = shared[0] if shared else online[0][1]
    signed = _sign_all(state, root, signer, report) if shared else b""
    data = root.to_bytes()
    if not store.put_if_absent(f"{FOLDER}/{root.signed.version}.root.json", data):
        raise PublishError("the root metadata", store.url, "another has just replaced it", "Try again")
    there = store.get(TIMESTAMP, MAX_BYTES)
    if there is None or there.data != signed:  # another has published meanwhile, perhaps by a key that is gone
        _sign_all(State.read(store, trusted), root, signer, report)
    return data


def _sign_root(url: str, root: Metadata[Root], before: Metadata[Root], old: Sequence[Signer], roots: Pairs) -> None:
    """Signs a new root by the old root keys and the new ones. Raises SignatureError if those are too few."""
    for root_signer in old:
        sign(root, root_signer, keys_of(before.signed, Root.type), append=True)
    for public, root_signer in roots:
        sign(root, root_signer, [key_of(public)], append=True)
    for verifier in (before, root):
        if not _is_signed(verifier, Root.type, root):
            problem = "too few root keys have signed the new one"
            raise SignatureError(url, problem, "Name more of the old keys with --old-root-key")


def _sign_all(state: State, root: Metadata[Root], signer: Signer, report: Callable[[str], None]) -> bytes:
    """Signs whatever the keys of a root have not signed, the timestamp last; returns the bytes of the timestamp."""
    keys = keys_of(root.signed, *ONLINE)
    for _attempt in topics.attempts():
        timestamp, version = _timestamp(state)
        snapshot = state.snapshot(timestamp)
        targets = state.targets(snapshot)
        bins = state.bins(targets)
        holders = {role: state.bin(role, snapshot, targets) for role in bins.get_roles()}
        is_new = {*bins.keyids} != {key.keyid for key in keys}
        if is_new:
            targets.signed.delegations = delegations(keys, bins)
        unsigned = {role: holder for role, holder in holders.items() if not _is_signed(targets, role, holder)}
        if unsigned:
            report(f"sign {len(unsigned)} files")
        for role, holder in unsigned.items():
            snapshot.signed.meta[f"{role}.json"] = MetaFile(state.put(holder, role, signer, keys))
        if is_new or not _is_signed(root, Targets.type, targets):
            number = state.put(targets, Targets.type, signer, keys)
            snapshot.signed.meta["targets.json"] = MetaFile(number)
            is_new = True
        if is_new or unsigned or not _is_signed(root, Snapshot.type, snapshot):
            timestamp.signed.snapshot_meta = MetaFile(state.put(snapshot, Snapshot.type, signer, keys))
        if state.renew(timestamp, version, signer, keys):
            return timestamp.to_bytes()
    raise PublishError("the timestamp", state.store.url, "others keep changing it", "Run: opforge tuf rotate again")


def _is_signed(delegator: Metadata[Root] | Metadata[Targets], role: str, metadata: Metadata[Any]) -> bool:
    try:
        delegator.signed.verify_delegate(role, metadata.signed_bytes, metadata.signatures)
    except RepositoryError:
        return False
    return True


def _timestamp(state: State) -> tuple[Metadata[Timestamp], str]:
    """Returns the timestamp, which an older root's key may have signed: who replaced the root may have been killed."""
    for root in [state.root, *reversed(state.older)]:
        state.verifier = root
        try:
            return state.timestamp()
        except SignatureError as error:
            refused = error
    state.verifier = state.root
    raise refused
