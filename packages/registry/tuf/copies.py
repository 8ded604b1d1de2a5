"""Copies TUF metadata to a mirror, signatures as they are: whoever trusts the registry's root can trust the copy."""

from __future__ import annotations

import json

from opforge.errors import PublishError
from opforge.remote.stores.protocol import ObjectStore

from . import FOLDER, MAX_BYTES, TIMESTAMP

ROOT = f"{FOLDER}/1.root.json"


def copy(source: ObjectStore, target: ObjectStore) -> bool:
    """Copies the metadata of a registry, its timestamp last; returns whether that changed the target.

    A registry without such metadata changes nothing. Raises PublishError if the target has metadata of its own,
    StoreError.
    """
    root, theirs = source.get(ROOT, MAX_BYTES), target.get(ROOT, MAX_BYTES)
    ours = source.get(TIMESTAMP, MAX_BYTES)
    if root is None or ours is None:
        return False
    if theirs is not None and theirs.data != root.data:
        raise PublishError("TUF metadata", target.url, "it has metadata of its own", "Publish there instead")
    before = target.get(TIMESTAMP, MAX_BYTES)
    if before is not None and _version(before.data) >= _version(ours.data):
        return False
    # Each file is written once: what the target has need not be fetched again.
    present = {TIMESTAMP, *(listed.name for listed in target.list(f"{FOLDER}/"))}
    for listed in source.list(f"{FOLDER}/"):
        if listed.name not in present and (stored := source.get(listed.name, MAX_BYTES)) is not None:
            target.put_if_absent(listed.name, stored.data)
    if before is None:
        return target.put_if_absent(TIMESTAMP, ours.data)
    return target.put_if_unchanged(TIMESTAMP, ours.data, before.version)


def _version(data: bytes) -> int:
    """Returns the version that metadata states. Whether it is signed is for those who install to check."""
    try:
        return int(json.loads(data)["signed"]["version"])
    except (ValueError, KeyError, TypeError):
        return 0
