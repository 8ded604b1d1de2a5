"""Statements of the kind `op`: their topic is a description, their tree an entry's library, their fact its record."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from opforge.cache import schema
from opforge.cache.layout import FETCHED, Layout, entry_name
from opforge.cache.records.entry import damage_of
from opforge.cache.records.schemas import RECORD
from opforge.cache.trees import digest_of_hashes

from . import kinds, statements, topics
from .blobs import Tree
from .kinds import Kept, Kind, Shown
from .statements import Statement, UnreadableStatement

KIND = "op"
FACTS = schema.record({"record": RECORD})


class OpOffer(NamedTuple):
    """What a store says of one entry."""

    record: Mapping[str, Any]
    tree: Tree

    @property
    def entry(self) -> str:
        """The name of the entry."""
        return entry_name(self.record["key"], self.record["sha256"])

    @property
    def subject(self) -> str:
        """What a key must be trusted for."""
        return f"{KIND}:{self.record['op']}"

    @property
    def title(self) -> str:
        """What withdrawals call it."""
        return f"{KIND}:{self.entry}"


def tree_digest(record: Mapping[str, Any]) -> str:
    """Returns the digest that names the tree of an entry: its library alone."""
    return digest_of_hashes({record["file"]: record["sha256"]})


def statement(record: Mapping[str, Any], description: str, tree: Tree) -> Statement:
    """Returns what a publisher says of an entry."""
    return Statement(KIND, description, (tree,), {"record": dict(record)})


def parse(data: bytes, description: str = "") -> OpOffer:
    """Returns what a statement says of an entry; its signature was verified before.

    Raises UnreadableStatement, also if it was made for another description than `description`, unless that is empty.
    """
    return offer_of(statements.parse_as(data, KIND, description))


def offer_of(stated: Statement) -> OpOffer:
    """Returns what a statement of this kind says of an entry. Raises UnreadableStatement."""
    record = statements.facts_of(stated, FACTS)["record"]
    tree = statements.only_tree(stated, "the tree of the op's library")
    if damage := damage_of(record):
        raise UnreadableStatement(f"in its facts the record is damaged: {damage}: publish the entry again")
    if record["size"] > tree.blob.unpacked:
        sizes = f"'trees[0].blob.unpacked' is {tree.blob.unpacked}, and 'facts.record.size' is {record['size']}"
        raise UnreadableStatement(f"{sizes}: expected no less")
    if tree.digest != (expected := tree_digest(record)):
        raise UnreadableStatement(f"'trees[0].digest' is {tree.digest}, and the library of its record has {expected}")
    return OpOffer(record, tree)


def topic_of(description: str) -> str:
    """Returns the name of the file that holds what is offered for a description."""
    return topics.name_of(KIND, description)


class OpKind(Kind):
    """Entries of ops: one request for a topic decides, and any entry that fits is right."""

    name, is_inline, needs_withdrawals = KIND, True, True

    def subject(self, statement: Statement) -> str:
        """Returns the name of the op."""
        return str(offer_of(statement).record["op"])

    def shown(self, statement: Statement) -> Shown:
        """Returns the op, its entry, and its target."""
        offer = offer_of(statement)
        return Shown(offer.record["op"], offer.entry, offer.record["target"])

    def title(self, shown: Shown) -> str:
        """Returns the entry: its name holds the digest of its library."""
        return shown.label

    def kept(self, layout: Layout) -> Iterator[Kept]:
        """Yields the entries that were fetched."""
        for folder in _names(layout.path(FETCHED)):
            for name in _names(layout.fetched(folder)):
                path = os.path.join(layout.fetched(folder), name)
                yield kinds.of_note(f"{KIND}:{name}", f"entry {name}", path)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
