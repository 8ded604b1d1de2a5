"""The protocol of stores: the methods, the values that they return, and which names and sizes are allowed."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from typing import BinaryIO, NamedTuple, Protocol

from opforge.errors import StoreError

MAX_NAME_CHARACTERS = 240
"""S3 allows 1024 for bucket prefix and name, and a path of a folder about 4000."""
LOCK_SUFFIX = ".lock"
"""The lock of an object has its name and this suffix, so no object may end with it."""
PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
"""A part of a name, between two "/". It does not end with LOCK_SUFFIX."""
_NAME = re.compile(rf"{PART}(/{PART})*")


class StoredObject(NamedTuple):
    """The bytes of an object, and an opaque version for `put_if_unchanged`: an ETag or a digest."""

    data: bytes
    version: str


class ListedObject(NamedTuple):
    """An object in a listing. `modified` is in seconds since the epoch, by the store's clock."""

    name: str
    size: int
    modified: float


class ObjectStore(Protocol):
    """A flat store of named bytes. Every method raises StoreError for what it cannot do.

    Names are like "v1/offers/KEY.json"; `check_name` says which are allowed. `url` holds no credentials.
    """

    url: str

    def get(self, name: str, limit: int) -> StoredObject | None:
        """Returns an object; None if there is none. StoreError if it has more than `limit` bytes."""
        ...

    def exists(self, name: str) -> bool:
        """Returns whether there is an object of this name. Its bytes are not read."""
        ...

    def download(self, name: str, file: BinaryIO, size: int) -> None:
        """Writes an object of exactly `size` bytes to `file`. A transfer that is cut is resumed where it ended."""
        ...

    def put_if_absent(self, name: str, data: bytes | BinaryIO) -> bool:
        """Stores an object. Returns False, and changes nothing, if there is one of that name already."""
        ...

    def put_if_unchanged(self, name: str, data: bytes, version: str) -> bool:
        """Replaces an object. Returns False, and changes nothing, if its version is no longer `version`."""
        ...

    def list(self, prefix: str, but: Container[str] = ()) -> Iterator[ListedObject]:
        """Yields the objects whose names begin with `prefix`, in any order, as they are found; none of those in `but`.

        A folder does not look at what is in `but`.
        """
        ...

    def names(self, prefix: str) -> Iterator[str]:
        """Yields the names of the objects that `list` yields. A folder looks at none of the files for that."""
        for file in self.list(prefix):
            yield file.name

    def read_each(self, names: Iterable[str], limit: int) -> Iterator[tuple[str, bytes]]:
        """Yields objects by their names, each with its bytes, without those that are gone.

        StoreError if one has more than `limit` bytes.
        """
        for name in names:
            if (stored := self.get(name, limit)) is not None:
                yield name, stored.data

    def modified(self, name: str) -> float | None:
        """Returns when an object was written, as `list` does; None if it is gone, or the store does not say that."""
        return next((file.modified for file in self.list(name) if file.name == name), None)

    def delete(self, name: str) -> None:
        """Removes an object. Nothing happens if there is none."""
        ...


def check_name(url: str, name: str) -> str:
    """Returns the name of an object. Raises StoreError if it could mean anything but a path below the store's root.

    Allowed are ASCII letters, digits and ".-_/", at most 240 characters; no part may begin with a dot, end with ".lock"
    or be empty.
    """
    if not is_name(name):
        raise StoreError(
            url, "checking a name", f"{name[:MAX_NAME_CHARACTERS]!r} cannot be the name of an object", _RULE
        )
    return name


def check_prefix(url: str, prefix: str) -> str:
    """Returns the beginning of names: a name that may end with "/", or "". Raises StoreError."""
    if len(prefix) > MAX_NAME_CHARACTERS or not re.fullmatch(rf"({_NAME.pattern}/?)?", prefix):
        shown = prefix[:MAX_NAME_CHARACTERS]
        raise StoreError(url, "checking a prefix", f"{shown!r} cannot be the beginning of an object's name", _RULE)
    return prefix


def is_name(name: str) -> bool:
    """Returns whether an object can have this name: stores leave out of listings what others have put there."""
    return len(name) <= MAX_NAME_CHARACTERS and bool(_NAME.fullmatch(name)) and f"{LOCK_SUFFIX}/" not in f"{name}/"


_RULE = (
    "Expected parts of ASCII letters, digits, '-', '_' and '.', separated by '/'. No part begins with a dot or ends"
    f" with {LOCK_SUFFIX!r}, and there are at most {MAX_NAME_CHARACTERS} characters"
)
