"""Which files of TUF metadata the newest timestamp leads to. What it does not is superseded, and can be collected."""

from __future__ import annotations

import itertools
import re
from typing import Any

from opforge.cache import schema
from opforge.cache.schema import SHA256, FormatError, record, table
from opforge.errors import StoreError
from opforge.remote.stores.protocol import ObjectStore

from . import FOLDER, MAX_BYTES, TARGETS, TIMESTAMP, VERSIONED, file_of

TARGET = record({"hashes": record({"sha256": SHA256}, is_open=True)}, is_open=True)
PARTS = {
    "timestamp": record({"snapshot.json": VERSIONED}, is_open=True),
    "meta": table(VERSIONED),
    "targets": table(TARGET),
}
"""What is read of the metadata's parts: of a timestamp's `meta`, a snapshot's `meta`, and a bin's `targets`."""

_ROOT = re.compile(rf"{FOLDER}/[1-9][0-9]*\.root\.json")
_SNAPSHOT = re.compile(rf"{FOLDER}/[1-9][0-9]{{0,17}}\.snapshot\.json")


def needed(store: ObjectStore, since: float = float("inf")) -> set[str]:
    """Returns the names of the files that are not superseded, without the roots; none if there is no metadata.

    What was superseded after `since`, by the store's clock, is needed too: a client may have read the timestamp before.
    Signatures are not verified: that is for those who read. Raises StoreError if a file is missing or damaged.
    """
    if store.get(TIMESTAMP, MAX_BYTES) is None:
        return set()
    walk = _Walk(store)
    try:
        newest = int(walk.part(TIMESTAMP, "timestamp")["snapshot.json"]["version"])
        walk.snapshot(newest)
    except FormatError as error:
        hint = "Restore it from a mirror first: opforge mirror"
        raise StoreError(store.url, "reading its TUF metadata", str(error), hint) from error
    for number in _recent(store, newest, since):
        try:
            walk.snapshot(number)
        except FormatError:
            continue  # no client needs it whole: it was begun and never named, or its parts are gone already
    return walk.names


def _recent(store: ObjectStore, newest: int, since: float) -> list[int]:
    """Returns the versions of the snapshots that were superseded after a time: their successors are younger."""
    files = {_number(file.name): file.modified for file in store.list(f"{FOLDER}/") if _SNAPSHOT.fullmatch(file.name)}
    numbers = sorted(files)
    successors = dict(itertools.pairwise(numbers))
    return [
        number for number in numbers if number != newest and files.get(successors.get(number, -1), since + 1) > since
    ]


def _number(name: str) -> int:
    return int(name.rpartition("/")[2].partition(".")[0])


class _Walk:
    """Follows snapshots to the files that they lead to, each file once."""

    def __init__(self, store: ObjectStore) -> None:
        self.names = {TIMESTAMP}
        self._store = store
        self._roles = set[str]()

    def snapshot(self, number: int) -> None:
        """Adds a snapshot and what it leads to. Raises StoreError, FormatError for what is damaged or gone."""
        for role, listed in self.part(f"{FOLDER}/{number}.snapshot.json", "meta").items():
            name = f"{FOLDER}/{listed['version']}.{role}"
            if name not in self._roles:
                for path, target in self.part(name, "targets").items():
                    self.names.add(file_of(path, target["hashes"]["sha256"]))
                self._roles.add(name)

    def part(self, name: str, field: str) -> dict[str, Any]:
        """Returns a part of what a file states. Raises FormatError if it is missing or damaged, StoreError."""
        self.names.add(name)
        stored = self._store.get(name, MAX_BYTES)
        if stored is None:
            raise FormatError(f"{name} is missing")
        return part_of(stored.data, name, field)


def part_of(data: bytes, name: str, part: str) -> dict[str, Any]:
    """Returns one of PARTS of what a file of metadata states. Whether it is signed is not looked at.

    Raises FormatError, which names the file and the field.
    """
    field = "meta" if part == "timestamp" else part
    signed = record({"signed": record({field: PARTS[part]}, is_open=True)}, is_open=True)
    try:
        return dict(schema.parse(data, signed, MAX_BYTES)["signed"][field])
    except FormatError as error:
        raise FormatError(f"{name} is damaged: {error}") from error


def is_root(name: str) -> bool:
    """Returns whether a file is root metadata: clients follow every one of them."""
    return bool(_ROOT.fullmatch(name))


def is_topic(name: str) -> bool:
    """Returns whether a file is a topic as it was signed, and no list of withdrawals."""
    return name.startswith(f"{TARGETS}/") and not name.startswith(f"{TARGETS}/withdrawals/")
