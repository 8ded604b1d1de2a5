"""The index of a package: its topic, with versions for labels. It lists a store's releases; no client relies on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from opforge.errors import KernelFormatError
from opforge.packages.form import names, version
from opforge.packages.form.version import Range, Version
from opforge.remote import topics
from opforge.remote.stores.protocol import ObjectStore
from opforge.remote.topics import ListedStatement, Listing

from .release import KIND

EXPECTED = "an index as opforge publish writes it"


class Index(NamedTuple):
    """The releases of a name. `sequence` rises with each change: a lower one is older."""

    name: str
    sequence: int
    releases: dict[Version, ListedStatement]

    def within(self, numbers: Range) -> list[Version]:
        """Returns the versions in a range, the newest first."""
        return sorted((number for number in self.releases if number in numbers), reverse=True)

    def listing(self) -> Listing:
        """Returns the topic."""
        return Listing(KIND, self.name, self.sequence, {str(key): self.releases[key] for key in sorted(self.releases)})


Edit = Callable[[Index], Index | None]
"""Returns a changed index; None if nothing has to change."""


def of_listing(listing: Listing, where: str) -> Index:
    """Returns the index that a topic is. Raises KernelFormatError."""
    releases: dict[Version, ListedStatement] = {}
    for label, listed in listing.statements.items():
        number = version.parse(label, where)
        if number in releases:
            raise KernelFormatError(where, f"version {number} is in it twice", EXPECTED)
        releases[number] = listed
    return Index(names.check(listing.topic, where), listing.sequence, releases)


def parse(data: bytes, name: str, where: str) -> Index:
    """Returns the index in a file, which must be of this name. Raises KernelFormatError."""
    try:
        return of_listing(topics.read_listing(data, KIND, names.check(name)), where)
    except ValueError as error:
        raise KernelFormatError(where, str(error), EXPECTED) from error


def read(store: ObjectStore, name: str) -> Index | None:
    """Returns the index of a name in a store; None if there is none. Raises StoreError, KernelFormatError."""
    file_name = topics.name_of(KIND, name)
    stored = store.get(file_name, topics.MAX_LISTING_BYTES)
    return None if stored is None else parse(stored.data, name, f"{store.url}/{file_name}")


def change(store: ObjectStore, name: str, edit: Edit) -> Index | None:
    """Changes an index by compare-and-swap.

    Returns the index that was written, or None. Raises PublishError if others keep changing it, StoreError,
    KernelFormatError, and what `edit` raises.
    """
    where = f"{store.url}/{topics.name_of(KIND, name)}"

    def changed(listing: Listing) -> Listing | None:
        edited = edit(of_listing(listing, where))
        return None if edited is None else edited.listing()

    try:
        written = topics.edit_listing(store, KIND, name, changed)
    except ValueError as error:
        if isinstance(error, KernelFormatError):
            raise
        raise KernelFormatError(where, str(error), EXPECTED) from error
    return None if written is None else of_listing(written, where)
