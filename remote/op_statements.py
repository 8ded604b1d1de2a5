"""The kind `op`: its topic is a description, its tree an entry's library, its fact the entry's record."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from opforge.cache import schema
from opforge.cache.admit import checked_record
from opforge.cache.layout import FETCHED, Layout, entry_name
from opforge.cache.ownership import is_own_name
from opforge.cache.records import fetched_offer
from opforge.cache.records.entry import damage_of, read_record
from opforge.cache.records.schemas import RECORD
from opforge.cache.trees import digest_of_hashes
from opforge.fast_path.library import BUILD
from opforge.foundation.files import folder_names

from . import statements
from .kinds import Kind, StoredArtifact
from .offers import Offer
from .remotes import Remote
from .statements import Statement, UnreadableStatement

FACTS = schema.record({"record": RECORD})
FLAGS_HINT = "Build it without them, or add flags=1 to the remote's URL"


class OpKind(Kind):
    """Entries of ops: one request for a topic decides, and any entry that fits is right."""

    name, noun, is_of_op, has_unique_labels = "op", "entry", True, True
    titles, title_form = r"[0-9a-f]{32}-[0-9a-f]{8}", "ENTRY"

    def offer(self, stated: Statement) -> Offer:
        """Returns the offer of an entry in a statement. Raises UnreadableStatement."""
        record = statements.facts_of(stated, FACTS)["record"]
        tree = statements.only_tree(stated, "the tree of the op's library")
        if damage := damage_of(record):
            raise UnreadableStatement(f"in its facts the record is damaged: {damage}: publish the entry again")
        if record["size"] > tree.blob.unpacked:
            sizes = f"'trees[0].blob.unpacked' is {tree.blob.unpacked}, and 'facts.record.size' is {record['size']}"
            raise UnreadableStatement(f"{sizes}: expected no less")
        if tree.digest != (expected := tree_digest(record)):
            raise UnreadableStatement(
                f"'trees[0].digest' is {tree.digest}, and the library of its record has {expected}"
            )
        entry = entry_name(record["key"], record["sha256"])
        return self.offered(record["op"], entry, record["target"], stated.facts, (tree,))

    def kept(self, layout: Layout) -> Iterator[StoredArtifact]:
        """Yields the stored offers of the entries that were fetched: without its offer an entry is not found."""
        for folder in folder_names(layout.path(FETCHED)):
            for name in folder_names(layout.fetched(folder)):
                path = os.path.join(layout.fetched(folder), name)
                yield StoredArtifact(path, label=name, note=path)

    def check(self, one: StoredArtifact, owners: Collection[int]) -> str:
        """Checks everything in an entry."""
        checked_record(one.path, owners, os.path.basename(one.path))
        return ""

    def origin(self, one: StoredArtifact) -> str:
        """Returns where an entry came from; empty if it was built here."""
        return came_from(one.path)

    def refusal(self, one: StoredArtifact, remote: Remote) -> tuple[str, str]:
        """Returns why an entry must not be published to a remote: it has the user's own flags."""
        flags = one.facts["record"]["user_flags"]
        if not flags or remote.takes_flags:
            return "", ""
        return f"it was built with {' '.join(f'{name}={value!r}' for name, value in flags.items())}", FLAGS_HINT

    def files(self, one: StoredArtifact) -> tuple[str, Collection[str]]:
        """Returns the entry's folder and its library."""
        return one.path, [one.facts["record"]["file"]]

    def at(self, folder: str, description: str = "") -> StoredArtifact:
        """Returns the entry in a folder, as one that is for a description; by default the one by which it was built."""
        try:
            record = read_record(folder)
        except (OSError, ValueError):
            record = None
        if record is None:
            return StoredArtifact(folder, "its record cannot be read")
        return StoredArtifact(
            path=folder,
            name=record["op"],
            label=entry_name(record["key"], record["sha256"]),
            target=record["target"],
            topic=description or record["description"],
            facts={"record": record},
            digest=tree_digest(record),
            size=record["size"],
        )

    def stored(self, layout: Layout) -> Iterator[StoredArtifact]:
        """Yields the entries, fetched ones too."""
        for name in folder_names(layout.path("entries")):
            if is_own_name("entries", name):
                one = self.at(layout.entry(name))
                yield one._replace(note=_note_of(layout.path(FETCHED), name))


OP = OpKind()


def tree_digest(record: Mapping[str, Any]) -> str:
    """Returns the digest that names the tree of an entry: its library alone."""
    return digest_of_hashes({record["file"]: record["sha256"]})


def came_from(folder: str) -> str:
    """Returns where the entry in a folder of a store came from; empty if it was built here."""
    if os.path.exists(os.path.join(folder, BUILD)):
        return ""
    area, key = os.path.dirname(os.path.dirname(folder)), os.path.basename(folder)
    try:
        return fetched_offer.read(_note_of(os.path.join(area, FETCHED), key)).remote
    except (OSError, ValueError):
        return "a remote or a layer"


def _note_of(kept: str, name: str) -> str:
    """Returns the path of what is kept of a fetched entry's statement; empty if nothing is.

    It is under the description that was asked for, which may be another one than that of the entry's record.
    """
    paths = (os.path.join(kept, description, name) for description in folder_names(kept))
    return next(filter(os.path.isfile, paths), "")
