"""Removes from a remote store statements and blobs that nothing names, old claims, and old topics."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from typing import NamedTuple

from opforge.errors import StoreError

from . import clocks, removals, statements, topics, withdrawal_lists
from .statements import UnreadableStatement
from .stores.protocol import ListedObject, ObjectStore

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
    lists = [file.name for file in store.list(withdrawal_lists.FOLDER)]
    for name, data in store.read_each(lists, withdrawal_lists.MAX_BYTES):
        try:
            released = withdrawal_lists.parse(withdrawal_lists.signed(data).data).released
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
