"""Publishes entries to a remote: the blob first, then the file of offers by compare-and-swap.

Two publishers at once lose nothing. One that is killed leaves at most a blob that nothing names.
"""

from __future__ import annotations

import functools
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, BinaryIO, NamedTuple, cast

from opforge.cache.layout import FETCHED, entry_name
from opforge.cache.records import fetched
from opforge.cache.records.entry import read_record
from opforge.errors import PublishError
from opforge.events import emit
from opforge.warm.library import BUILD

from . import blobs, kinds, op_statements, removals, statements, topics, withdrawals
from .remotes import Remote
from .signatures.keys import Signer
from .statements import Signed, Statement
from .stores.protocol import ObjectStore

DAMAGED_HINT = "Nothing was published: opforge verify sets it aside, and a load builds it again"
FOREIGN_HINT = "Its publisher signs it: opforge mirror copies it with its signatures"
FLAGS_HINT = "Build it without them, or add flags=1 to the remote's URL"


class Pushed(NamedTuple):
    """The result for one entry."""

    op: str
    entry: str
    description: str
    size: int
    """Bytes of the blob."""
    is_new: bool
    """False if the remote had this offer already."""


def push(store: ObjectStore, remote: Remote, folder: str, description: str, signer: Signer | None) -> Pushed:
    """Publishes the entry in a folder for a description. Without a signer its offer is unsigned.

    Raises PublishError, StoreError, ExtraNotInstalledError, OSError.
    """
    began = time.perf_counter()
    record = _record(remote, folder)
    what, entry = f"{record['op']} {os.path.basename(folder)}", entry_name(record["key"], record["sha256"])
    refuse_foreign(what, remote, came_from(folder))
    try:
        with tempfile.TemporaryFile() as file:
            tree, hashes = blobs.pack(folder, [record["file"]], file)
            if tree.digest != op_statements.tree_digest(record):
                raise PublishError(what, str(remote), _damage(folder, record, hashes), DAMAGED_HINT)
            stated = op_statements.statement(record, description, tree)
            is_new = add_statement(store, stated, signer, merge, what, str(remote), Blob(tree, file))
    except ValueError as error:
        raise PublishError(what, str(remote), str(error), "Nothing was published") from error
    if is_new:
        seconds = round(time.perf_counter() - began, 6)
        emit("push", op=record["op"], seconds=seconds, bytes=tree.blob.size, path=str(remote), result=entry)
    return Pushed(record["op"], entry, description, tree.blob.size, is_new)


def came_from(folder: str) -> str:
    """Returns where the entry in a folder of a store came from; empty if it was built here."""
    record = read_record(folder) or {}
    area, key = os.path.dirname(os.path.dirname(folder)), os.path.basename(folder)
    try:
        note = fetched.read(os.path.join(area, FETCHED, str(record.get("description")), key))
    except (OSError, ValueError):
        note = None
    if note is not None and not note.offer:
        return "an archive"
    if os.path.exists(os.path.join(folder, BUILD)):
        return ""
    return note.remote if note else "a remote or a layer"


def refuse_foreign(what: str, remote: Remote, origin: str) -> None:
    """Raises PublishError for what was not made here: a signature says that its holder has made what it signs."""
    if origin:
        reason = f"it came from {origin}, and was not made here"
        raise PublishError(what, str(remote), reason, FOREIGN_HINT)


def _damage(folder: str, record: Mapping[str, Any], hashes: Mapping[str, str]) -> str:
    """Returns how an entry's library differs from its record."""
    library, digest = os.path.join(folder, record["file"]), hashes[record["file"]]
    return f"{library} is damaged: its SHA-256 is {digest}, and 'sha256' in record.json is {record['sha256']}"


class Blob(NamedTuple):
    """The tree of a statement, packed into an open file."""

    tree: blobs.Tree
    file: IO[bytes]

    def send(self, store: ObjectStore) -> bool:
        """Sends it to a store; returns whether it was not there. Raises StoreError."""
        self.file.seek(0)
        return store.put_if_absent(self.tree.blob.name, cast(BinaryIO, self.file))


def add_statement(
    store: ObjectStore,
    stated: Statement,
    signer: Signer | None,
    merge: Callable[[list[Signed], Signed], list[Signed]],
    what: str,
    where: str,
    blob: Blob | None = None,
) -> bool:
    """Signs a statement and adds it to its topic's file; returns whether anything was new.

    Its blob is sent before, and looked at once more after; the signer's list of withdrawals is put there too. `merge`
    returns the statements of the topic with this one. Raises PublishError, StoreError, ValueError.
    """
    item = statements.signed(stated, [signer] if signer else [], topics.MAX_ITEM_BYTES)
    kind = kinds.of(stated.kind)
    assert kind is not None
    kind.shown(statements.parse_as(item.data, stated.kind, stated.topic))  # nobody could read what cannot be shown
    uploads = removals.Uploads(store)
    if blob:
        uploads.send(blob.tree.blob.name, functools.partial(blob.send, store))
    if signer:
        withdrawals.publish(store, signer, item.signatures[0].name)
    name = topics.name_of(stated.kind, stated.topic)
    is_new = topics.edit_items(store, name, lambda before: merge(before, item), what, where)
    uploads.keep()
    return is_new


def description_of(folder: str) -> str:
    """Returns the description by which a stored entry was built, for `push`; empty if its record cannot be read."""
    try:
        return str((read_record(folder) or {}).get("description", ""))
    except (OSError, ValueError):
        return ""


def _record(remote: Remote, folder: str) -> Mapping[str, Any]:
    """Returns the record of the entry in a folder. Raises PublishError if it must not be published."""
    try:
        record = read_record(folder)
    except (OSError, ValueError):
        record = None
    if record is None:
        raise PublishError(folder, str(remote), "its record cannot be read", "Build the op again")
    if record["user_flags"] and not remote.takes_flags:
        flags = " ".join(f"{name}={value!r}" for name, value in record["user_flags"].items())
        raise PublishError(record["op"], str(remote), f"it was built with {flags}", FLAGS_HINT)
    return record


def merge(items: list[Signed], item: Signed) -> list[Signed]:
    """Returns the offers with a new one: as a further signature of the same bytes, or as another offer.

    An offer of the same library by the same key stays as it is: two builds differ in how long they took.
    """
    entry = op_statements.parse(item.data).entry
    for at, other in enumerate(items):
        if item.signers <= other.signers and (other.data == item.data or _entry_of(other) == entry):
            return items
        if other.data == item.data:
            signatures = (*other.signatures, *item.signatures)[-statements.MAX_SIGNATURES :]
            return [*items[:at], item._replace(signatures=signatures), *items[at + 1 :]]
    return [*items, item]


def _entry_of(item: Signed) -> str:
    try:
        return op_statements.parse(item.data).entry
    except ValueError:
        return ""  # of a newer opforge, or damaged: it stays
