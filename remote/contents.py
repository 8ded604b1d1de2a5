"""Lists and verifies the contents of a store, of any kind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

from opforge.errors import RemoteError, SignatureError, WithdrawnError
from opforge.errors.base import printable

from . import blobs, kinds, statements, topics, withdrawal_lists
from .accepted_statements import Lists, judge
from .remotes import Remote
from .signatures import trust_file
from .statements import Signed, UnreadableStatement
from .stores.protocol import ListedObject, ObjectStore
from .topics import Topic
from .withdrawal_lists import CHOOSING, NOTHING, Unverified, Withdrawal


class Item(NamedTuple):
    """One statement of a store. Times are seconds since the epoch, by the store's clock."""

    kind: str
    topic: str
    name: str
    """The op or the package; empty if that cannot be read here."""
    label: str
    """An op's entry, a package's version."""
    target: str
    size: int
    """Bytes of all its blobs."""
    signers: tuple[str, ...]
    modified: float
    """When the file of its topic was last written."""
    withdrawn: str = ""
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `--json` prints: its names are public."""
        return self._asdict()


class Placed(NamedTuple):
    """A statement with its place in a topic."""

    label: str
    signed: Signed
    problem: str = ""


def of_topic(store: ObjectStore, topic: Topic) -> Iterator[Placed]:
    """Yields the statements of a topic, those with files of their own too. Raises StoreError."""
    if topic.problem:
        yield Placed("", Signed(b""), problem=topic.problem)
    for item in topic.items:
        yield Placed("", item)
    for label, listed in topic.listing.statements.items() if topic.listing else ():
        name = statements.name_of(listed.digest)
        stored = store.get(name, statements.MAX_FILE_BYTES)
        try:
            if stored is None:
                raise UnreadableStatement(f"its file {name} is missing")
            yield Placed(label, statements.read_file(stored.data, listed.digest))
        except UnreadableStatement as error:
            yield Placed(label, Signed(b""), str(error))


def items(store: ObjectStore, kind: str = "") -> Iterator[Item]:
    """Yields every statement of a store, or those of a kind. Signatures are not verified. Raises StoreError."""
    lists = withdrawal_lists.Unverified(store)
    for topic in topics.in_store(store, kind):
        for placed in of_topic(store, topic):
            yield _item(topic, placed, lists)


def of_name(store: ObjectStore, kind: str, topic: str) -> Iterator[Item]:
    """Yields the statements of one topic, as `items` does. The store need not be able to list what it holds."""
    name, lists = topics.name_of(kind, topic), withdrawal_lists.Unverified(store)
    if (stored := store.get(name, topics.MAX_LISTING_BYTES)) is not None:
        read = topics.read(stored.data, kind, topic, ListedObject(name, len(stored.data), 0.0))
        for placed in of_topic(store, read):
            yield _item(read, placed, lists)


def _item(topic: Topic, placed: Placed, lists: Unverified) -> Item:
    signers = tuple(signature.name for signature in placed.signed.signatures)
    item = Item(topic.kind, topic.topic, "", placed.label, "", 0, signers, topic.file.modified, problem=placed.problem)
    if placed.problem:
        return item
    try:
        stated = statements.parse(placed.signed.data)
        item = item._replace(size=sum(tree.blob.size for tree in stated.trees))
        kind = kinds.of(topic.kind)
        if kind is None:
            return item._replace(problem=f"the kind {topic.kind!r} is unknown to this opforge")
        offer = kind.offer(statements.readable(stated, topic.kind, topic.topic))
        item = item._replace(name=offer.name, target=printable(offer.target))
        said = [(name, lists.of(name).of(offer.title)) for name in signers]
        item = item._replace(withdrawn="; ".join(_withdrawn(name, one) for name, one in said if one.stops != NOTHING))
        if placed.label not in ("", offer.label):
            return item._replace(problem=f"its topic names it {placed.label}, and it is {offer.label}")
        return item._replace(label=offer.label)
    except ValueError as error:
        return item._replace(problem=str(error))


def _withdrawn(key: str, said: Withdrawal) -> str:
    because = f": {said.reason}" if said.reason else ""
    return f"not {'chosen' if said.stops == CHOOSING else 'loaded'} any more, says {key}{because}"


def verify(store: ObjectStore, remote: Remote, on_progress: Callable[[int], None] = lambda _count: None) -> list[Item]:
    """Checks every statement of a store as those who load it do, with all trees; returns all, with their problems.

    Raises TrustFileError, StoreError if the store cannot be listed.
    """
    trusted, checked, shown = trust_file.read(), list[Item](), withdrawal_lists.Unverified(store)
    lists = Lists(store, remote, trusted, is_fresh=True)
    for topic in topics.in_store(store):
        for placed in of_topic(store, topic):
            item = _item(topic, placed, shown)
            if not item.problem:
                item = item._replace(problem=_problem(store, remote, trusted, lists, topic, placed.signed))
            checked.append(item)
            on_progress(len(checked))
    return checked


def _problem(
    store: ObjectStore, remote: Remote, trusted: trust_file.Trust, lists: Lists, topic: Topic, signed: Signed
) -> str:
    """Returns why a statement would not be accepted, or an empty text. One that is withdrawn is listed as that."""
    kind = kinds.of(topic.kind)
    assert kind is not None  # `_item` has looked
    try:
        with suppress(WithdrawnError):
            judge(signed, "it", kind, None if remote.is_unsigned else trusted, lists, kind.parse)
        stated = statements.parse_as(signed.data, topic.kind, topic.topic)
        with ExitStack() as stack:
            folders = {}
            for tree in stated.trees:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                folders[tree.digest] = os.path.join(folder, "tree")
                blobs.fetch(store, tree, folder, "tree")
            return kind.problem(stated, folders)
    except SignatureError as error:
        return error.reason
    except (ValueError, RemoteError) as error:
        return str(error)
