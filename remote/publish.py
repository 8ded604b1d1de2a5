"""Publishes this machine's artifacts of any kind: the blob first, then the topic's file by compare-and-swap.

Two publishers at once lose nothing. One that is killed leaves at most a blob that nothing names.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO, Any, NamedTuple

from opforge.errors import PublishError
from opforge.foundation.events import emit

from . import blobs, removals, statements, topics, withdrawal_lists
from .kinds import Kind, StoredArtifact
from .offers import merged
from .remotes import Remote
from .signatures.keys import Signer
from .statements import Signed, Statement, UnreadableStatement
from .stores.protocol import ObjectStore
from .transfer import Report, Reported, ignore

FOREIGN_HINT = "Its publisher signs it: opforge mirror copies it with its signatures"
DAMAGED_HINT = "Nothing was published: opforge verify sets it aside, and it is made again when it is needed"


class PackedTree(NamedTuple):
    """The tree of a statement, packed into an open file."""

    tree: blobs.Tree
    file: IO[bytes]
    report: Report = ignore
    label: str = ""
    """Its name in reports."""

    def send(self, store: ObjectStore) -> bool:
        """Sends it to a store; returns whether it was not there. Raises StoreError."""
        self.file.seek(0)
        blob, file = self.tree.blob, self.file
        reported: Any = file if self.report is ignore else Reported(file, self.report, self.label, blob.size)
        return store.put_if_absent(blob.name, reported)


class Pushed(NamedTuple):
    """The result for one statement."""

    kind: str
    name: str
    label: str
    target: str
    size: int
    """Bytes of the blob; 0 if the facts are all there is."""
    is_new: bool
    """False if the remote had this offer already."""


def push(store: ObjectStore, remote: Remote, kind: Kind, one: StoredArtifact, signer: Signer | None) -> Pushed:
    """Publishes something of a store. Without a signer its statement is unsigned.

    Raises PublishError, also for what another has made: a signature says that its holder has made what it signs;
    StoreError, ExtraNotInstalledError, OSError.
    """
    began, what, where = time.perf_counter(), f"{kind.name}:{one.name}", str(remote)
    if one.problem:
        raise PublishError(one.path, where, f"it is damaged: {one.problem}", DAMAGED_HINT)
    if signer is None and kind.unsigned:
        raise PublishError(what, where, kind.unsigned, "Leave out unsigned=1, and sign it")
    if origin := kind.origin(one):
        raise PublishError(what, where, f"it came from {origin}, and was not made here", FOREIGN_HINT)
    reason, hint = kind.refusal(one, remote)
    if reason:
        raise PublishError(what, where, reason, hint)
    try:
        with tempfile.TemporaryFile() as file:
            trees, blob = tuple[blobs.Tree, ...](), None
            if one.digest:
                blob = _packed(kind, one, file)
                trees = (blob.tree,)
            stated = Statement(kind.name, one.topic, trees, dict(one.facts))
            is_new = add_statement(store, kind, stated, signer, what, where, blob)
    except ValueError as error:
        raise PublishError(what, where, str(error), DAMAGED_HINT) from error
    size = sum(tree.blob.size for tree in trees)
    if is_new:
        seconds = round(time.perf_counter() - began, 6)
        emit("push", op=one.name, seconds=seconds, bytes=size, path=where, result=one.label)
    return Pushed(kind.name, one.name, one.label, one.target, size, is_new)


def _packed(kind: Kind, one: StoredArtifact, file: IO[bytes]) -> PackedTree:
    """Returns the packed tree of something. Raises ValueError if its files are not those that its record names."""
    folder, paths = kind.files(one)
    tree, _hashes = blobs.pack(folder, paths, file)
    if tree.digest != one.digest:
        digests = f"their digest is {tree.digest}, expected {one.digest}"
        raise ValueError(f"the files in {folder} are damaged, or were changed: {digests}")
    return PackedTree(tree, file)


def add_statement(
    store: ObjectStore,
    kind: Kind,
    stated: Statement,
    signer: Signer | None,
    what: str,
    where: str,
    blob: PackedTree | None = None,
) -> bool:
    """Signs a statement and adds it to its topic's file; returns whether anything was new.

    The signer's list of withdrawals is put there before. Raises PublishError, StoreError, ValueError.
    """
    item = statements.signed(stated, [signer] if signer else [], topics.MAX_ITEM_BYTES)
    kind.parse(item.data, stated.topic)  # what nobody could read must not be published
    name = kind.topic_file(stated.topic)

    def add() -> bool:
        if signer:
            withdrawal_lists.publish(store, signer, item.signatures[0].name)
        return topics.edit_items(store, name, lambda before: merged(before, item, kind.parse, kind.merge), what, where)

    return send(store, kind, item, [blob] if blob else [], add, what)


def send(
    store: ObjectStore, kind: Kind, item: Signed, trees: Sequence[PackedTree], add: Callable[[], bool], what: str
) -> bool:
    """Sends the trees of a statement, and then the statement; returns what `add` does, which adds it to its topic.

    All of it is looked at once more afterwards: it may have been collected meanwhile. Raises StoreError, PublishError,
    and what `add` raises.
    """
    uploads = removals.Uploads(store)
    for packed in trees:
        uploads.send(packed.tree.blob.name, functools.partial(packed.send, store))
    if not kind.is_inline:
        uploads.send(statements.name_of(item.digest), functools.partial(send_file, store, item, what))
    is_new = add()
    uploads.keep()
    return is_new


def send_file(store: ObjectStore, item: Signed, what: str) -> bool:
    """Puts a statement's own file into a store, or adds its signatures to the one there; returns whether it was new.

    Raises StoreError, PublishError.
    """
    name = statements.name_of(item.digest)
    try:
        return add_signatures(store, name, item)
    except ValueError as error:
        raise PublishError(what, store.url, str(error), f"Remove {name}, and publish again") from error


def add_signatures(target: ObjectStore, name: str, signed: Signed) -> bool:
    """Does what `send_file` does. Raises ValueError for more signatures than are read."""
    is_new = False

    def change(stored: bytes | None) -> bytes | None:
        nonlocal is_new
        is_new = stored is None
        try:
            there = statements.read_file(stored, signed.digest) if stored is not None else Signed(signed.data)
        except UnreadableStatement:
            return signed.file()  # it is damaged
        both = union(there, signed)
        return None if stored is not None and both == there else both.file()

    topics.edit(target, name, statements.MAX_FILE_BYTES, change, name)
    return is_new


def union(there: Signed, ours: Signed) -> Signed:
    """Returns a statement with the signatures of both. Raises ValueError for more than are read."""
    both = tuple(dict.fromkeys((*there.signatures, *ours.signatures)))
    if len(both) > max(len(there.signatures), statements.MAX_SIGNATURES):
        more = ", ".join(sorted(ours.signers - there.signers)) or "others"
        most = statements.MAX_SIGNATURES
        raise ValueError(f"it has {len(there.signatures)} signatures there, at most {most} are read: not by {more}")
    return there._replace(signatures=both)
