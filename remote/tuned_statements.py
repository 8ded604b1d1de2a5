"""Statements of the kind `tuned`: their topic is a description, as an op's; their facts are a tuning result.

A result has no tree: what is said is all there is. So one request decides, and nothing is unpacked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from opforge.cache.keys import canonical
from opforge.cache.layout import Layout
from opforge.cache.records import tuned as records
from opforge.cache.records.tuned import stem_of
from opforge.cache.schema import FormatError

from . import kinds, statements, topics
from .kinds import Kept, Kind, Shown, Stored
from .statements import Signed, Statement, UnreadableStatement

KIND = "tuned"
DIGITS = 8


class ResultOffer(NamedTuple):
    """What a store says of an op's values."""

    value: Mapping[str, Any]

    @property
    def subject(self) -> str:
        """What a key must be trusted for."""
        return f"{KIND}:{self.value['op']}"

    @property
    def title(self) -> str:
        """What withdrawals call it."""
        return f"{KIND}:{label_of(self.value)}"


def statement(value: Mapping[str, Any]) -> Statement:
    """Returns what a publisher says of a result. Raises FormatError."""
    return Statement(KIND, value["kernel"], (), records.checked(dict(value)))


def result_of(stated: Statement) -> Mapping[str, Any]:
    """Returns the result in a statement of this kind. Raises UnreadableStatement."""
    try:
        value = records.checked(stated.facts)
    except FormatError as error:
        raise UnreadableStatement(f"in its facts {error}") from error
    size = len(canonical(value))
    if size > records.MAX_BYTES:
        raise UnreadableStatement(f"its facts have {size} bytes, and at most {records.MAX_BYTES} are read")
    if value["kernel"] != stated.topic:
        raise UnreadableStatement(f"'facts.kernel' is {value['kernel']!r}, and its topic {stated.topic!r}")
    if stated.trees:
        raise UnreadableStatement(f"'trees' is a list of {len(stated.trees)} items: expected none")
    return value


def parse(data: bytes, kernel: str = "") -> Mapping[str, Any]:
    """Returns the result in signed bytes, which were verified before. Raises UnreadableStatement."""
    return result_of(statements.parse_as(data, KIND, kernel))


def label_of(value: Mapping[str, Any]) -> str:
    """Returns what tells a result from all others: its code, its machine, and the digest of what it says."""
    digest = hashlib.sha256(canonical(dict(value))).hexdigest()
    return f"{value['kernel'][:DIGITS]}-{stem_of(value['target'], value['cores'])}-{digest[:DIGITS]}"


def topic_of(kernel: str) -> str:
    """Returns the name of the file that holds the results for an op's code."""
    return topics.name_of(KIND, kernel)


def merge(items: Sequence[Signed], item: Signed) -> list[Signed]:
    """Returns the statements of a topic with a new one, in the place of an earlier one by the same key."""
    value = parse(item.data)
    kept = [other for other in items if not (_is_same_machine(other, value) and other.signers <= item.signers)]
    if any(other.data == item.data and item.signers <= other.signers for other in items):
        return list(items)
    return [*kept, item]


def _is_same_machine(item: Signed, value: Mapping[str, Any]) -> bool:
    try:
        other = parse(item.data)
    except ValueError:
        return False  # of a newer opforge, or damaged: it stays
    return (other["target"], other["cores"]) == (value["target"], value["cores"])


class TunedKind(Kind):
    """Tuning results: one request for a topic decides, and any result that fits is right."""

    name, is_inline, needs_withdrawals = KIND, True, False

    def subject(self, statement: Statement) -> str:
        """Returns the name of the op."""
        return str(result_of(statement)["op"])

    def shown(self, statement: Statement) -> Shown:
        """Returns the op, the result's label, and the machine that it is for."""
        value = result_of(statement)
        cores = f", {value['cores']} cores" if value["cores"] else ""
        return Shown(value["op"], label_of(value), value["target"] + cores)

    def title(self, shown: Shown) -> str:
        """Returns the label, which holds the digest of the result."""
        return shown.label

    def stored(self, layout: Layout, owners: Collection[int]) -> Iterator[Stored]:
        """Reads every result."""
        for found in records.stored(layout.root, owners):
            yield Stored(f"{KIND}:{found.value['op']}" if found.value else "", found.path, found.problem)

    def kept(self, layout: Layout) -> Iterator[Kept]:
        """Yields the results that were fetched."""
        for found in records.stored(layout.root):
            if found.is_fetched and not found.problem:
                name = f"{KIND}:{label_of(found.value)}"
                yield kinds.of_note(name, f"tuning result {found.path}", found.path)
