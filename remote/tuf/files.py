"""Which files of TUF metadata the newest timestamp leads to. What it does not is superseded, and can be collected."""

from __future__ import annotations

import json
import re
from typing import Any

from opforge.cache.filesystem.files import UNREADABLE
from opforge.errors import StoreError
from opforge.errors.base import damage
from opforge.remote.stores.protocol import ObjectStore

from . import FOLDER, MAX_BYTES, TARGETS, TIMESTAMP, file_of

_ROOT = re.compile(rf"{FOLDER}/[1-9][0-9]*\.root\.json")


def needed(store: ObjectStore) -> set[str]:
    """Returns the names of the files that are not superseded, without the roots; none if there is no metadata.

    Signatures are not verified: that is for those who read. Raises StoreError if a file is missing or damaged.
    """
    if store.get(TIMESTAMP, MAX_BYTES) is None:
        return set()
    names = {TIMESTAMP}

    def part(name: str, field: str) -> dict[str, Any]:
        names.add(name)
        stored = store.get(name, MAX_BYTES)
        if stored is None:
            raise _stopped(store, f"{name} is missing")
        try:
            value = json.loads(stored.data)["signed"][field]
            return dict(value)
        except UNREADABLE as error:
            raise _stopped(store, f"{name} is damaged: {damage(error)}") from error

    try:
        snapshot = f"{FOLDER}/{part(TIMESTAMP, 'meta')['snapshot.json']['version']}.snapshot.json"
        for role, listed in part(snapshot, "meta").items():
            for path, target in part(f"{FOLDER}/{listed['version']}.{role}", "targets").items():
                names.add(file_of(path, target["hashes"]["sha256"]))
    except UNREADABLE as error:
        if isinstance(error, StoreError):
            raise
        raise _stopped(store, f"its metadata is damaged: {damage(error)}") from error
    return names


def is_root(name: str) -> bool:
    """Returns whether a file is root metadata: clients follow every one of them."""
    return bool(_ROOT.fullmatch(name))


def is_target(name: str) -> bool:
    """Returns whether a file is a topic as it was signed."""
    return name.startswith(f"{TARGETS}/")


def _stopped(store: ObjectStore, reason: str) -> StoreError:
    hint = "Restore it from a mirror first: opforge mirror"
    return StoreError(store.url, "reading its TUF metadata", reason, hint)
