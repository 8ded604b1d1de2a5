"""TUF metadata of a registry as a publisher reads it: every signature is verified before anything is added."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from securesystemslib.signer import Signature, SSlibKey
from securesystemslib.signer import Signer as TufSigner
from tuf.api.exceptions import RepositoryError, UnsignedMetadataError
from tuf.api.metadata import Metadata, Root, Snapshot, Targets, Timestamp
from tuf.api.serialization import DeserializationError

from opforge.errors import OpforgeError, PublishError, SignatureError
from opforge.remote.signatures import signing
from opforge.remote.signatures.keys import Signer
from opforge.remote.stores.protocol import ObjectStore, Stored

from . import FOLDER, MAX_BYTES, TIMESTAMP

TIMESTAMP_DAYS, ROOT_DAYS, OTHER_DAYS = 7, 365, 3650
"""How long metadata is valid. The timestamp vouches for the rest, so it alone is short."""
ATTEMPTS = 20
OWNER = "x-opforge-key"
"""The field of a key with its name."""
ONLINE = (Timestamp.type, Snapshot.type, Targets.type)
"""The roles of the key that publishes."""


Roots = Sequence[tuple[signing.Named, Signer]]
"""Root keys, each with what signs by it."""


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
    return datetime.now(timezone.utc).replace(microsecond=0) + timedelta(days=days)


class State:
    """The newest metadata of a registry: whatever is read of it is verified, but for how old it is."""

    def __init__(self, store: ObjectStore, root: Metadata[Root]) -> None:
        self.store, self.root = store, root
        self.older: list[Metadata[Root]] = []
        """The roots before it, the oldest first."""
        self.verifier = root
        """The root whose keys have signed what is read."""

    @classmethod
    def read(cls, store: ObjectStore, trusted: bytes) -> State:
        """Returns the state with the newest root that follows from a trusted one. Raises SignatureError, StoreError."""
        state = cls(store, Metadata[Root].from_bytes(trusted))
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

    def load(self, kind: Any, file: str, verifier: Any, role: str) -> tuple[Any, str]:
        """Returns metadata with the version of its object, after verifying its signatures. Raises SignatureError."""
        stored = self._get(file)
        if stored is None:
            raise self._error(f"it has no {file}")
        try:
            loaded = Metadata[kind].from_bytes(stored.data)
            verifier.verify_delegate(role, loaded.signed_bytes, loaded.signatures)
        except (RepositoryError, DeserializationError) as error:
            raise self._error(error) from error
        return loaded, stored.version

    def timestamp(self) -> tuple[Metadata[Timestamp], str]:
        """Returns the timestamp, and the version of its object."""
        return self.load(Timestamp, "timestamp.json", self.verifier.signed, Timestamp.type)

    def snapshot(self, timestamp: Metadata[Timestamp]) -> Metadata[Snapshot]:
        """Returns the snapshot that a timestamp names."""
        number = timestamp.signed.snapshot_meta.version
        file = f"{number}.snapshot.json"
        snapshot: Metadata[Snapshot] = self.load(Snapshot, file, self.verifier.signed, Snapshot.type)[0]
        return snapshot

    def targets(self, snapshot: Metadata[Snapshot]) -> Metadata[Targets]:
        """Returns the metadata that delegates to the bins."""
        number = snapshot.signed.meta["targets.json"].version
        targets: Metadata[Targets] = self.load(Targets, f"{number}.targets.json", self.verifier.signed, Targets.type)[0]
        return targets

    def bin(self, name: str, snapshot: Metadata[Snapshot], targets: Metadata[Targets]) -> Metadata[Targets]:
        """Returns the metadata of a bin."""
        number = snapshot.signed.meta[f"{name}.json"].version
        loaded: Metadata[Targets] = self.load(Targets, f"{number}.{name}.json", targets.signed, name)[0]
        return loaded

    def keys(self, *roles: str) -> list[Any]:
        """Returns the keys of some roles."""
        identifiers = [identifier for role in roles for identifier in self.root.signed.roles[role].keyids]
        return [self.root.signed.keys[identifier] for identifier in dict.fromkeys(identifiers)]

    def put(self, metadata: Metadata[Any], role: str, signer: Signer) -> int:
        """Signs metadata under the next version that is free, and stores it; returns that version."""
        for _attempt in range(ATTEMPTS):
            metadata.signed.version += 1
            sign(metadata, signer, self.keys(*ONLINE))
            # One that was killed may have left this version, which no timestamp names.
            if self.store.put_if_absent(f"{FOLDER}/{metadata.signed.version}.{role}.json", metadata.to_bytes()):
                return int(metadata.signed.version)
        raise PublishError(role, self.store.url, "others keep changing its TUF metadata", "Try again")

    def renew(self, timestamp: Metadata[Timestamp], version: str, signer: Signer, days: float = TIMESTAMP_DAYS) -> bool:
        """Signs a timestamp anew and replaces that of this version; returns False if another was quicker."""
        timestamp.signed.version += 1
        timestamp.signed.expires = expiry(days)
        sign(timestamp, signer, self.keys(Timestamp.type))
        return self.store.put_if_unchanged(TIMESTAMP, timestamp.to_bytes(), version)
