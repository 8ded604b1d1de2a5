"""Copies TUF metadata to a mirror, signatures as they are: whoever trusts the registry's root can trust the copy.

What is copied is what the newest timestamp names, file by file: an HTTP server has no list of its files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from opforge.errors import PublishError
from opforge.errors.base import damage
from opforge.remote.stores.protocol import ObjectStore, Stored

from . import FOLDER, MAX_BYTES, TIMESTAMP, file_of

ROOT = f"{FOLDER}/1.root.json"
MAX_ROOTS = 1024
"""How often a registry can have replaced its keys. A hostile one would have another root for ever."""
SNAPSHOT = "snapshot.json"


def require_same(source: ObjectStore, target: ObjectStore) -> bool:
    """Returns whether the source has metadata. Raises PublishError if the target has metadata of its own; StoreError.

    For before anything is copied.
    """
    root, theirs = source.get(ROOT, MAX_BYTES), target.get(ROOT, MAX_BYTES)
    if root is not None and theirs is not None and theirs.data != root.data:
        raise PublishError("TUF metadata", target.url, "it has metadata of its own", "Publish there instead")
    return root is not None


def copy(source: ObjectStore, target: ObjectStore) -> bool:
    """Copies the metadata of a registry, its timestamp last; returns whether that changed the target.

    A registry without such metadata changes nothing. Raises PublishError if the target has metadata of its own, or the
    source's is incomplete; StoreError.
    """
    has_metadata, ours = require_same(source, target), source.get(TIMESTAMP, MAX_BYTES)
    if not has_metadata or ours is None:
        return False
    before = target.get(TIMESTAMP, MAX_BYTES)
    if before is not None and _version(before.data) >= _version(ours.data):
        return False
    for number in range(1, MAX_ROOTS):
        root = source.get(f"{FOLDER}/{number}.root.json", MAX_BYTES)
        if root is None:
            break
        target.put_if_absent(f"{FOLDER}/{number}.root.json", root.data)
    try:
        _copy_snapshot(source, target, ours, before)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _incomplete(source, f"its TUF metadata is damaged: {damage(error)}") from error
    if before is None:
        return target.put_if_absent(TIMESTAMP, ours.data)
    return target.put_if_unchanged(TIMESTAMP, ours.data, before.version)


def _copy_snapshot(source: ObjectStore, target: ObjectStore, ours: Stored, theirs: Stored | None) -> None:
    """Copies the snapshot that a timestamp names, after what it names and the target's timestamp does not."""
    number, before = _part(ours, "meta")[SNAPSHOT]["version"], _number(_known(theirs, "meta"), SNAPSHOT)
    snapshot = _get(source, f"{FOLDER}/{number}.{SNAPSHOT}")
    roles = _known(target.get(f"{FOLDER}/{before}.{SNAPSHOT}", MAX_BYTES), "meta")
    for role, listed in _part(snapshot, "meta").items():
        if listed["version"] != _number(roles, role):
            _copy_role(source, target, role, listed["version"], _number(roles, role))
    target.put_if_absent(f"{FOLDER}/{number}.{SNAPSHOT}", snapshot.data)


def _copy_role(source: ObjectStore, target: ObjectStore, role: str, number: int, before: int) -> None:
    """Copies the metadata of a role, after the indexes that it names and its version `before` did not."""
    targets = _get(source, f"{FOLDER}/{number}.{role}")
    copied = _known(target.get(f"{FOLDER}/{before}.{role}", MAX_BYTES), "targets")
    for path, listed in _part(targets, "targets").items():
        if listed != copied.get(path):
            name = file_of(path, listed["hashes"]["sha256"])
            target.put_if_absent(name, _get(source, name).data)
    target.put_if_absent(f"{FOLDER}/{number}.{role}", targets.data)


def _get(source: ObjectStore, name: str) -> Stored:
    stored = source.get(name, MAX_BYTES)
    if stored is None:
        raise _incomplete(source, f"it has no {name}, which its TUF metadata names")
    return stored


def _incomplete(source: ObjectStore, problem: str) -> PublishError:
    return PublishError("TUF metadata", source.url, problem, "The registry is incomplete: ask its owner")


def _part(stored: Stored, name: str) -> Any:
    """Returns a part of what metadata states. Whether it is signed is for those who install to check."""
    return json.loads(stored.data)["signed"][name]


def _known(stored: Stored | None, name: str) -> dict[str, Any]:
    """Returns a part of what the target's metadata states; nothing if there is none, or it is damaged."""
    try:
        part = _part(stored, name) if stored is not None else {}
        return part if isinstance(part, dict) else {}
    except (ValueError, KeyError, TypeError):
        return {}


def _number(meta: Mapping[str, Any], file: str) -> int:
    """Returns the version of a file that metadata names; 0, which no file has, if it names none."""
    listed = meta.get(file)
    number = listed.get("version") if isinstance(listed, dict) else 0
    return number if isinstance(number, int) else 0


def _version(data: bytes) -> int:
    """Returns the version that metadata states; 0 if it is damaged."""
    try:
        return int(json.loads(data)["signed"]["version"])
    except (ValueError, KeyError, TypeError):
        return 0
