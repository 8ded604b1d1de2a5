"""Lists and verifies the contents of a store, of any kind, and collects blobs that nothing needs."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

from opforge.errors import RemoteError, SignatureError, StoreError, WithdrawnError
from opforge.errors.base import printable

from . import blobs, clocks, kinds, removals, statements, topics, withdrawals
from .judging import Lists
from .remotes import Remote
from .signatures import trust
from .statements import Signed, UnreadableStatement
from .stores.protocol import ListedObject, ObjectStore
from .topics import Topic
from .withdrawals import CHOOSING, NOTHING, Unverified, Withdrawal

BLOBS, CLAIMS = "v1/blobs/", "v1/claims/"
UNUSED_SECONDS = 24 * 3600.0
"""How old a blob or a statement is that nothing names, before it is removed: a publisher puts these first."""
_DIGEST = "[0-9a-f]{64}"
_OWN_NAME = re.compile(
    rf"{BLOBS}sha256/[0-9a-f]{{2}}/{_DIGEST}|{statements.FOLDER}sha256/[0-9a-f]{{2}}/{_DIGEST}"
    rf"|{CLAIMS}(?:{clocks.MARK}[0-9a-f]{{16}}|[0-9a-f]{{32}})\.json"
)
"""The names of what is collected."""
DAMAGED = "Correct or remove {} first"
NEWER = "Run this with the newest opforge that publishes there"


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
    lists = withdrawals.Unverified(store)
    for topic in topics.in_store(store, kind):
        for placed in of_topic(store, topic):
            yield _item(topic, placed, lists)


def of_name(store: ObjectStore, kind: str, topic: str) -> Iterator[Item]:
    """Yields the statements of one topic, as `items` does. The store need not be able to list what it holds."""
    name, lists = topics.name_of(kind, topic), withdrawals.Unverified(store)
    stored = store.get(name, topics.MAX_LISTING_BYTES)
    if stored is not None:
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
    trusted, checked, shown = trust.read(), list[Item](), withdrawals.Unverified(store)
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
    store: ObjectStore, remote: Remote, trusted: trust.Trust, lists: Lists, topic: Topic, signed: Signed
) -> str:
    """Returns why a statement would not be accepted, or an empty text. One that is withdrawn is listed as that."""
    kind = kinds.of(topic.kind)
    assert kind is not None  # `_item` has looked
    try:
        signers = [] if remote.is_unsigned else trusted.signers("it", signed.data, signed.signatures)
        stated = statements.parse_as(signed.data, topic.kind, topic.topic)
        if not remote.is_unsigned:
            offer = kind.offer(stated)
            signers = trust.allowed(signers, offer.subject, "it")
            with suppress(WithdrawnError):
                digest = signed.digest if kind.is_released else ""
                lists.accepted("it", offer.title, signers, kind.needs_withdrawals, digest)
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


class Unused(NamedTuple):
    """An object of a store that nothing needs."""

    name: str
    size: int
    reason: str


class _Needs(NamedTuple):
    """The files that the topics of a store need, and the topics that are collected."""

    names: set[str]
    """Of blobs and statements."""
    unused: list[ListedObject]


def _needs(store: ObjectStore, now: float, unused_for: float | None = None) -> _Needs:
    """Returns the names of the files that are needed; those of old topics are left out: see `unused`.

    Raises StoreError, also for a topic or a statement that cannot be read: it may name any blob.
    """
    needs = _Needs(set(), [])
    old = dict[str, ListedObject]()
    if unused_for is not None:
        old = {file.name: file for file in store.list(topics.FOLDER) if now - file.modified > unused_for}
    # The names of all topics first: one that is replaced while a folder is listed could be missing in the listing.
    places = {name: place for name in store.names(topics.FOLDER) if (place := topics.parse_name(name))}
    for name, data in store.read_each(places, topics.MAX_LISTING_BYTES):
        try:
            names, is_inline = topics.needed_by(data, *places[name])
        except UnreadableStatement as error:
            raise _stopped(store, name, str(error), NEWER) from error
        except ValueError as error:
            raise _stopped(store, name, str(error), DAMAGED.format(name)) from error
        if is_inline and name in old and names:
            needs.unused.append(old[name])
        else:
            needs.names.update(names)
    unnamed = [*store.list(statements.FOLDER, needs.names)]
    if unnamed:
        needs.names.update(_released(store))
    named = sorted(name for name in needs.names if name.startswith(statements.FOLDER))
    # Their topics may follow.
    young = [file.name for file in unnamed if file.name not in needs.names and not _is_old(file, now)]
    for name, data in store.read_each([*named, *young], statements.MAX_FILE_BYTES):
        try:
            needs.names.update(statements.blobs_in_file(data, name.rpartition("/")[2]))
        except UnreadableStatement as error:
            raise _stopped(store, name, str(error), f"{DAMAGED.format(name)}; {NEWER}") from error
    return needs


def _released(store: ObjectStore) -> Iterator[str]:
    """Yields the names of the statements' files that the lists of keys name: an index may have lost them.

    Whether the lists are signed is not looked at. Raises StoreError, also for one that is damaged.
    """
    lists = [file.name for file in store.list(withdrawals.FOLDER)]
    for name, data in store.read_each(lists, withdrawals.MAX_BYTES):
        try:
            released = withdrawals.parse(withdrawals.signed(data).data).released
        except ValueError as error:
            raise _stopped(store, name, str(error), DAMAGED.format(name)) from error
        for labels in released.values():
            yield from map(statements.name_of, labels.values())


def unused(store: ObjectStore, now: float, unused_for: float | None = None) -> Iterator[Unused]:
    """Yields the files that are collected: statements and blobs that nothing names, and old claims.

    With `unused_for`, also topics that hold their statements and to which nothing was added for so long. `now` and
    `unused_for` are seconds; `now` is by the store's clock. Statements of kinds that are unknown here are kept, with
    their trees. Raises StoreError, and stops at a topic or a statement that cannot be read: it may name any blob.
    """
    needs = _needs(store, now, unused_for)
    for file in needs.unused:
        yield Unused(file.name, file.size, f"nothing was published for it for {(now - file.modified) / 86400:.0f} d")
    # A publisher may have begun to need one of these meanwhile: `collect` announces each, and reads the topics again.
    for folder, by in ((BLOBS, "statement"), (statements.FOLDER, "topic")):
        for file in _own(store, folder, needs.names):
            if _is_old(file, now):
                yield Unused(file.name, file.size, f"no {by} names it")
    for claim in _own(store, CLAIMS):
        if _is_old(claim, now):
            yield Unused(claim.name, claim.size, "its owner is gone")


def _own(store: ObjectStore, folder: str, besides: Container[str] = ()) -> Iterator[ListedObject]:
    """Yields the objects in a folder that have names of opforge's making: a user may have put others there."""
    return (file for file in store.list(folder, besides) if _OWN_NAME.fullmatch(file.name))


def collect(store: ObjectStore, now: float, unused_for: float | None = None) -> Iterator[Unused]:
    """Removes the files that `unused` yields, unless they are being published again. Yields the removed ones.

    Raises StoreError.
    """
    items = list(unused(store, now, unused_for))
    new = set[str]()  # topics that were published to meanwhile
    if unused_for is not None:
        new = {file.name for file in store.list(topics.FOLDER) if now - file.modified <= unused_for}
    files = {item.name: item for item in items if item.name.startswith((BLOBS, statements.FOLDER))}
    for item in items:
        if item.name not in files and item.name not in new:
            store.delete(item.name)
            yield item
    for name in removals.remove(store, files, lambda: _needs(store, now).names, now):
        yield files[name]


def _is_old(file: ListedObject, now: float) -> bool:
    return now - file.modified > UNUSED_SECONDS


def _stopped(store: ObjectStore, where: str, problem: str, hint: str) -> StoreError:
    return StoreError(store.url, "collecting what nothing names", f"{where}: {problem}", hint)
