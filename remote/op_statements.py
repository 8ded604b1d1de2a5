"""Statements of the kind `op`: their topic is a description, their tree an entry's library, their fact its record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from opforge.cache.filesystem.files import UNREADABLE
from opforge.cache.layout import entry_name
from opforge.cache.records.inputs import Inputs
from opforge.cache.records.record_fields import record_problem
from opforge.cache.trees import digest_of_hashes
from opforge.errors.base import damage

from . import statements, topics
from .blobs import Tree
from .kinds import Kind, Shown
from .statements import DIGEST, Statement, UnreadableStatement

KIND = "op"
_KEY = re.compile(r"[0-9a-f]{32}")


class OpOffer(NamedTuple):
    """What a store says of one entry."""

    record: Mapping[str, Any]
    tree: Tree

    @property
    def entry(self) -> str:
        """The name of the entry."""
        return entry_name(self.record["key"], self.record["sha256"])


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
    try:
        return _offer(stated)
    except UnreadableStatement:
        raise
    except UNREADABLE as error:
        raise UnreadableStatement(f"its facts are damaged: {damage(error)}") from error


def _offer(stated: Statement) -> OpOffer:
    if stated.facts.keys() != {"record"} or len(stated.trees) != 1:
        raise UnreadableStatement("it does not hold one record and one tree")
    record, tree = stated.facts["record"], stated.trees[0]
    if problem := record_problem(record):
        raise UnreadableStatement(problem)
    if not record["op"].isidentifier():
        raise UnreadableStatement(f"'op' of its record is {record['op']!r:.60}, expected an identifier")
    for name in ("plan", "description", "key"):
        if not _KEY.fullmatch(record[name]):
            raise UnreadableStatement(f"the {name} in its record is {record[name]!r:.60}: expected 32 hex digits")
    if not DIGEST.fullmatch(record["sha256"]):
        raise UnreadableStatement(f"the sha256 in its record is {record['sha256']!r:.80}: expected 64 hex digits")
    if type(record["size"]) is not int or not 0 < record["size"] <= tree.blob.unpacked:
        limit = tree.blob.unpacked
        raise UnreadableStatement(f"the size in its record is {record['size']!r:.40}: expected 1 to {limit}")
    if tree.digest != tree_digest(record):
        raise UnreadableStatement("its tree is not the library of its record")
    Inputs.from_json(record["inputs"])
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

    def title(self, statement: Statement) -> str:
        """Returns the entry: its name holds the digest of its library."""
        return offer_of(statement).entry
