"""Copies TUF metadata to a mirror, signatures as they are: whoever trusts the registry's root can trust the copy.

What is copied is what the newest timestamp names, file by file: an HTTP server has no list of its files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opforge.cache import schema
from opforge.cache.schema import FormatError
from opforge.errors import PublishError
from opforge.remote.stores.protocol import ObjectStore, Stored

from . import FOLDER, MAX_BYTES, SIGNED_VERSION, TIMESTAMP, file_of
from .files import part_of

ROOT = f"{FOLDER}/1.root.json"
MAX_ROOTS = 1024
"""How often a registry can have replaced its keys. A hostile one would have another root for ever."""
SNAPSHOT = "snapshot.json"
HINT = "Ask the registry's owner to put that file back, from a mirror or a backup, or copy from another mirror"


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
    except FormatError as error:
        raise PublishError("TUF metadata", source.url, str(error), HINT) from error
    if before is None:
        return target.put_if_absent(TIMESTAMP, ours.data)
    return target.put_if_unchanged(TIMESTAMP, ours.data, before.version)


def _copy_snapshot(source: ObjectStore, target: ObjectStore, ours: Stored, theirs: Stored | None) -> None:
    """Copies the snapshot that a timestamp names, after what it names and the target's timestamp does not."""
    number = _part(ours, TIMESTAMP, "timestamp")[SNAPSHOT]["version"]
    before = _number(_known(theirs, "timestamp"), SNAPSHOT)
    name = f"{FOLDER}/{number}.{SNAPSHOT}"
    snapshot = _get(source, name, TIMESTAMP)
    roles = _known(target.get(f"{FOLDER}/{before}.{SNAPSHOT}", MAX_BYTES), "meta")
    for role, listed in _part(snapshot, name, "meta").items():
        if listed["version"] != _number(roles, role):
            copied = _known(target.get(f"{FOLDER}/{_number(roles, role)}.{role}", MAX_BYTES), "targets")
            _copy_role(source, target, name, f"{FOLDER}/{listed['version']}.{role}", copied)
    target.put_if_absent(name, snapshot.data)


def _copy_role(source: ObjectStore, target: ObjectStore, by: str, name: str, copied: Mapping[str, Any]) -> None:
    """Copies the metadata of a role, which the snapshot `by` names, after the indexes in it that `copied` lacks."""
    targets = _get(source, name, by)
    for path, listed in _part(targets, name, "targets").items():
        if listed != copied.get(path):
            index = file_of(path, listed["hashes"]["sha256"])
            target.put_if_absent(index, _get(source, index, name).data)
    target.put_if_absent(name, targets.data)


def _get(source: ObjectStore, name: str, by: str) -> Stored:
    """Returns a file that the metadata `by` names. Raises FormatError if there is none."""
    stored = source.get(name, MAX_BYTES)
    if stored is None:
        raise FormatError(f"{name} is missing, and {by} names it")
    return stored


def _part(stored: Stored, name: str, part: str) -> Any:
    """Returns a part of what a file of metadata states. Whether it is signed is for those who install to check.

    Raises FormatError, which names the file and the field.
    """
    return part_of(stored.data, name, part)


def _known(stored: Stored | None, part: str) -> dict[str, Any]:
    """Returns a part of what the target's metadata states; nothing if there is none, or it is damaged."""
    try:
        return dict(_part(stored, "", part)) if stored is not None else {}
    except FormatError:
        return {}


def _number(meta: Mapping[str, Any], file: str) -> int:
    """Returns the version of a file that metadata names; 0, which no file has, if it names none."""
    return int(meta[file]["version"]) if file in meta else 0


def _version(data: bytes) -> int:
    """Returns the version that metadata states; 0 if it is damaged."""
    try:
        return int(schema.parse(data, SIGNED_VERSION, MAX_BYTES)["signed"]["version"])
    except FormatError:
        return 0
