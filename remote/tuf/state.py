"""TUF metadata of a registry as a publisher reads it: every signature is verified before anything is added."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from securesystemslib.signer import Signature, SSlibKey
from securesystemslib.signer import Signer as TufSigner
from tuf.api.exceptions import RepositoryError, UnsignedMetadataError
from tuf.api.metadata import Metadata, Root, Snapshot, SuccinctRoles, Targets, Timestamp
from tuf.api.serialization import DeserializationError

from opforge.errors import OpforgeError, PublishError, SignatureError
from opforge.remote.signatures import signing
from opforge.remote.signatures.keys import Signer
from opforge.remote.stores.protocol import ObjectStore, Stored

from . import FOLDER, MAX_BYTES, TIMESTAMP, roots
from .roots import Root as TrustedRoot

TIMESTAMP_DAYS, ROOT_DAYS, OTHER_DAYS = 7, 365, 3650
"""How long metadata is valid. The timestamp vouches for the rest, so it alone is short."""
MAX_LEFT = 1000
"""How many versions of a file are skipped that no timestamp names: those of publishers who were killed or slower."""
OWNER = "x-opforge-key"
"""The field of a key with its name."""
ONLINE = (Timestamp.type, Snapshot.type, Targets.type)
"""The roles of the key that publishes."""


Pairs = Sequence[tuple[signing.Named, Signer]]
"""Public keys, each with what signs by it."""


class KeySigner(TufSigner):
    """Signs by one of our keys: a file, a variable, or a command."""

    def __init__(self, signer: Signer, keys: Sequence[Any]) -> None:
        self._signer, self._keys = signer, keys

    def sign(self, payload: bytes) -> Signature:
        named = self._signer(payload)
        for key in self._keys:
            signature = Signature(key.keyid, named.data.hex())
            if signing.is_signed(payload, named, signing.Named(named.name, bytes.fromhex(key.keyval["public"]))):
                return signature
        owners = ", ".join(sorted(key.unrecognized_fields.get(OWNER, key.keyid) for key in self._keys))
        raise SignatureError("TUF metadata", f"the key {named.name} may not sign it", f"Sign with one of: {owners}")

    @property
    def public_key(self) -> Any:
        return self._keys[0]

    @classmethod
    def from_priv_key_uri(cls, *_arguments: Any, **_more: Any) -> KeySigner:
        raise NotImplementedError("opforge signs with its own keys: see opforge key")


def sign(metadata: Metadata[Any], signer: Signer, keys: Sequence[Any], append: bool = False) -> None:
    """Signs metadata by one of these keys; `append` keeps other signatures. Raises SignatureError, KeyFileError."""
    try:
        metadata.sign(KeySigner(signer, keys), append)
    except UnsignedMetadataError as error:
        raise error.__cause__ if isinstance(error.__cause__, OpforgeError) else error from None


def key_of(public: signing.Named) -> SSlibKey:
    """Returns a public key in TUF's form."""
    identifier = hashlib.sha256(public.data).hexdigest()
    return SSlibKey(identifier, "ed25519", "ed25519", {"public": public.data.hex()}, {OWNER: public.name})


def expiry(days: float) -> datetime:
    """Returns the time some days from now."""
    return datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)


class State:
    """The newest metadata of a registry: whatever is read of it is verified, but for how old it is."""

    def __init__(self, store: ObjectStore, root: Metadata[Root], trusted: TrustedRoot | None = None) -> None:
        """Takes a verified root, and the one that this user trusts: None while the metadata is begun."""
        self.store, self.root, self._trusted = store, root, trusted
        self.older: list[Metadata[Root]] = []
        """The roots before it, the oldest first."""
        self.verifier = root
        """The root whose keys have signed what is read."""

    @classmethod
    def read(cls, store: ObjectStore, trusted: TrustedRoot) -> State:
        """Returns the state with the newest root that follows from a trusted one. Raises SignatureError, StoreError."""
        try:
            state = cls(store, Metadata[Root].from_bytes(trusted.data), trusted)
        except DeserializationError as error:
            problem = "its root metadata, which you trust, cannot be read"
            raise SignatureError(store.url, problem, "Trust it again: opforge tuf trust") from error
        try:
            while (stored := state._get(f"{state.root.signed.version + 1}.root.json")) is not None:
                newer = Metadata[Root].from_bytes(stored.data)
                for verifier in (state.root, newer):
                    verifier.signed.verify_delegate(Root.type, newer.signed_bytes, newer.signatures)
                if newer.signed.version != state.root.signed.version + 1:
                    raise RepositoryError(f"its root has version {newer.signed.version}")
                state.older.append(state.root)
                state.root = state.verifier = newer
        except (RepositoryError, DeserializationError) as error:
            raise state._error(error) from error
        return state

    def _get(self, file: str) -> Stored | None:
        return self.store.get(f"{FOLDER}/{file}", MAX_BYTES)

    def _error(self, error: object) -> SignatureError:
        advice = "Report it to the registry's owner; nothing was signed"
        return SignatureError(self.store.url, f"its TUF metadata is refused: {str(error).rstrip('.')}", advice)

    def load(self, kind: Any, file: str, verifier: Any, role: str, number: int | None = None) -> tuple[Any, str]:
        """Returns metadata with the version of its object, after verifying its signatures.

        `number` is the version that it must state: what was signed earlier may lie in the place of what is newer.
        Raises SignatureError.
        """
        stored = self._get(file)
        if stored is None:
            raise self._error(f"it has no {file}")
        try:
            loaded = Metadata[kind].from_bytes(stored.data)
            verifier.verify_delegate(role, loaded.signed_bytes, loaded.signatures)
        except (RepositoryError, DeserializationError) as error:
            raise self._error(error) from error
        if number is not None and loaded.signed.version != number:
            raise self._error(f"{file} is version {loaded.signed.version}")
        return loaded, stored.version

    def timestamp(self) -> tuple[Metadata[Timestamp], str]:
        """Returns the timestamp, and the version of its object. One that is older than what was seen is refused."""
        seen = (
            roots.seen(self._trusted) if self._trusted else 0
        )  # first: another process may renew it after it was read here
        loaded, version = self.load(Timestamp, "timestamp.json", self.verifier.signed, Timestamp.type)
        if loaded.signed.version < seen:
            raise self._error(f"its timestamp is version {loaded.signed.version}, and version {seen} was seen before")
        return loaded, version

    def snapshot(self, timestamp: Metadata[Timestamp]) -> Metadata[Snapshot]:
        """Returns the snapshot that a timestamp names."""
        loaded: Metadata[Snapshot] = self._named(Snapshot, Snapshot.type, timestamp.signed.snapshot_meta.version)
        return loaded

    def targets(self, snapshot: Metadata[Snapshot]) -> Metadata[Targets]:
        """Returns the metadata that delegates to the bins."""
        loaded: Metadata[Targets] = self._named(Targets, Targets.type, snapshot.signed.meta["targets.json"].version)
        return loaded

    def bin(self, name: str, snapshot: Metadata[Snapshot], targets: Metadata[Targets]) -> Metadata[Targets]:
        """Returns the metadata of a bin."""
        loaded: Metadata[Targets] = self._named(Targets, name, snapshot.signed.meta[f"{name}.json"].version, targets)
        return loaded

    def _named(self, kind: Any, role: str, number: int, verifier: Metadata[Any] | None = None) -> Any:
        return self.load(kind, f"{number}.{role}.json", (verifier or self.verifier).signed, role, number)[0]

    def bins(self, targets: Metadata[Targets]) -> SuccinctRoles:
        """Returns which bins there are, and whose keys sign them."""
        delegations = targets.signed.delegations
        if delegations is None or delegations.succinct_roles is None:
            raise self._error("its targets are not in bins, so opforge has not made it")
        return delegations.succinct_roles

    def put(self, metadata: Metadata[Any], role: str, signer: Signer, keys: Sequence[Any]) -> int:
        """Signs metadata by one of these keys under the next version that is free, and stores it.

        Returns that version. Raises SignatureError, PublishError, StoreError.
        """
        for _version in range(MAX_LEFT):
            metadata.signed.version += 1
            sign(metadata, signer, keys)
            if self.store.put_if_absent(f"{FOLDER}/{metadata.signed.version}.{role}.json", metadata.to_bytes()):
                return int(metadata.signed.version)
        raise PublishError(role, self.store.url, "others keep changing its TUF metadata", "Try again")

    def renew(
        self,
        timestamp: Metadata[Timestamp],
        version: str,
        signer: Signer,
        keys: Sequence[Any],
        days: float = TIMESTAMP_DAYS,
    ) -> bool:
        """Signs a timestamp anew and replaces that of this version; returns False if another was quicker."""
        timestamp.signed.version += 1
        timestamp.signed.expires = expiry(days)
        sign(timestamp, signer, keys)
        is_new = self.store.put_if_unchanged(TIMESTAMP, timestamp.to_bytes(), version)
        if is_new and self._trusted:
            roots.note(self._trusted, timestamp.to_bytes())
        return is_new


def keys_of(root: Root, *roles: str) -> list[Any]:
    """Returns the keys of some roles."""
    identifiers = [identifier for role in roles for identifier in root.roles[role].keyids]
    return [root.keys[identifier] for identifier in dict.fromkeys(identifiers)]


def delegated_keys(targets: Targets) -> list[Any]:
    """Returns the keys that sign the bins."""
    assert targets.delegations and targets.delegations.succinct_roles  # `State.bins` has looked
    return [targets.delegations.keys[identifier] for identifier in targets.delegations.succinct_roles.keyids]
