"""The index of a name: its releases by digest, and which were yanked and why. Resolving reads this one file."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import NamedTuple

from opforge.errors import PublishError
from opforge.packages.form import names, version
from opforge.packages.form.json_text import Fields, canonical, is_sha256, parse_object
from opforge.packages.form.version import Range, Version
from opforge.remote.stores.protocol import ObjectStore

FORMAT = 1
MAX_BYTES, MAX_RELEASES, MAX_REASON = 16 << 20, 60_000, 500
EXPECTED = "an index as opforge publish writes it"
ATTEMPTS, PAUSE_SECONDS = 20, 0.05
"""How often an index is written again after another publisher was quicker, and the first pause."""


class Listed(NamedTuple):
    """A release in an index."""

    digest: str
    yanked: str = ""
    """Why it was yanked; empty if it was not."""


class Index(NamedTuple):
    """The releases of a name. `sequence` rises with each change: a lower one is older."""

    name: str
    sequence: int
    releases: dict[Version, Listed]

    def data(self) -> bytes:
        """Returns the content of the file."""
        listed = {str(number): self.releases[number]._asdict() for number in sorted(self.releases)}
        return canonical({"format": FORMAT, "name": self.name, "sequence": self.sequence, "releases": listed})

    def usable(self, numbers: Range, with_yanked: bool = False) -> list[Version]:
        """Returns the versions in a range, the newest first; yanked ones only if requested."""
        versions = [number for number in self.releases if number in numbers]
        if not with_yanked:
            versions = [number for number in versions if not self.releases[number].yanked]
        return sorted(versions, reverse=True)


Edit = Callable[[Index], Index | None]
"""Returns a changed index; None if nothing has to change."""


def file_name(name: str) -> str:
    """Returns the name of an index in a store."""
    return f"v1/packages/{name}.json"


def parse(data: bytes, name: str, where: str) -> Index:
    """Returns the index in a file, which must be of this name. Raises KernelFormatError."""
    fields = Fields(parse_object(data, where, MAX_BYTES, EXPECTED), where, EXPECTED)
    if fields.whole("format") != FORMAT:
        raise fields.error(f"its format is {fields.whole('format')}, and this opforge reads {FORMAT}: update opforge")
    if fields.text("name") != name:
        raise fields.error(f"it is the index of {ascii(fields.text('name'))[:100]}, and not of {name}")
    listed = fields.table("releases")
    if len(listed) > MAX_RELEASES:
        raise fields.error(f"it has {len(listed)} releases, more than {MAX_RELEASES}")
    releases = {}
    for text, value in listed.items():
        digest = value.get("digest") if isinstance(value, dict) else None
        yanked = value.get("yanked", "") if isinstance(value, dict) else None
        if not is_sha256(digest) or not isinstance(yanked, str):
            problem = f"release {ascii(text)[:40]} is {ascii(value)[:100]}"
            raise fields.error(f"{problem}, and no object with 'digest' (64 hex digits) and 'yanked' (a text)")
        number = version.parse(text, where)
        if number in releases:
            raise fields.error(f"version {number} is in it twice")
        # Nobody signs it: a reason must not control the terminal of those who read it.
        shown = "".join(char if char.isprintable() else " " for char in yanked[:MAX_REASON])
        releases[number] = Listed(str(digest), shown)
    return Index(names.check(name), fields.whole("sequence"), releases)


def read(store: ObjectStore, name: str) -> tuple[Index | None, str]:
    """Returns the index of a name in a store, and the version of its file; None if there is none.

    Raises StoreError, KernelFormatError.
    """
    stored = store.get(file_name(name), MAX_BYTES)
    if stored is None:
        return None, ""
    return parse(stored.data, name, f"{store.url}/{file_name(name)}"), stored.version


def change(store: ObjectStore, name: str, edit: Edit) -> Index | None:
    """Changes an index by compare-and-swap.

    Returns the index that was written, or None. Raises PublishError if others keep changing it, StoreError,
    KernelFormatError, and what `edit` raises.
    """
    pause = PAUSE_SECONDS
    for _attempt in range(ATTEMPTS):
        index, stored_version = read(store, name)
        edited = edit(index or Index(name, 0, {}))
        if edited is None:
            return None
        edited = edited._replace(sequence=edited.sequence + 1)
        if len(edited.releases) > MAX_RELEASES:
            raise PublishError(name, store.url, f"it has {MAX_RELEASES} releases already", "Begin a new name")
        data = edited.data()
        if len(data) > MAX_BYTES:
            problem = f"its index would have {len(data)} bytes, more than {MAX_BYTES}"
            raise PublishError(name, store.url, problem, "Begin a new name, or give shorter reasons")
        if (
            store.put_if_unchanged(file_name(name), data, stored_version)
            if index
            else store.put_if_absent(file_name(name), data)
        ):
            return edited
        time.sleep(random.uniform(0, pause))  # noqa: S311 - publishers must not try again in step
        pause = min(2.0, pause * 1.7)
    raise PublishError(name, store.url, "others kept changing its index", "Try again")
