"""The kind `tuned`: its topic is a description, as an op's; its facts are a tuning result.

A result has no tree: what is said is all there is. So one request decides, and nothing is unpacked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from opforge.builders.lookup import tuning_results as records
from opforge.builders.lookup.tuning_results import stem_of
from opforge.cache.keys import canonical
from opforge.cache.layout import Layout
from opforge.cache.schema import FormatError

from .kinds import Kind, StoredArtifact
from .offers import ONE_FOR_EACH_MACHINE, Offer
from .statements import Statement, UnreadableStatement

DIGITS = 8


class TunedKind(Kind):
    """Tuning results: one request for a topic decides, and any result that fits is right."""

    name, noun, is_of_op, has_unique_labels, needs_withdrawals = "tuned", "tuning result", True, True, False
    titles, title_form = rf"[0-9a-f]{{{DIGITS}}}-[ -~]+-[0-9a-f]{{{DIGITS}}}", "LABEL"
    maker = "See opforge tune"
    merge = ONE_FOR_EACH_MACHINE

    def offer(self, stated: Statement) -> Offer:
        """Returns the offer of an op's values in a statement. Raises UnreadableStatement."""
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
        return self.offered(value["op"], label_of(value), _target(value), value)

    def of(self, value: Mapping[str, Any]) -> StoredArtifact:
        """Returns a result that lies nowhere, as one to publish. Raises FormatError."""
        return self._stored("", records.checked(dict(value)), False)

    def stored(self, layout: Layout) -> Iterator[StoredArtifact]:
        """Yields every result."""
        for one in records.stored(layout.root):
            if one.problem:
                yield StoredArtifact(one.path, one.problem, note=one.path if one.is_fetched else "")
            else:
                yield self._stored(one.path, one.value, one.is_fetched)

    def _stored(self, path: str, value: Mapping[str, Any], is_fetched: bool) -> StoredArtifact:
        taken = sum(bool(row["config"]) for row in value["rows"])
        return StoredArtifact(
            path=path,
            name=value["op"],
            label=label_of(value),
            target=_target(value),
            topic=value["kernel"],
            facts=value,
            size=len(canonical(dict(value))),
            note=path if is_fetched else "",
            details=f"{taken} of {len(value['rows'])} not the default",
        )

    def check(self, one: StoredArtifact, owners: Collection[int]) -> str:
        """Reads a result again, with the owners of its store."""
        return records.read_stored(one.path, owners).problem


TUNED = TunedKind()


def label_of(value: Mapping[str, Any]) -> str:
    """Returns the label of a result, which no other has: the digest of its code, its machine, its own digest."""
    digest = hashlib.sha256(canonical(dict(value))).hexdigest()
    return f"{value['kernel'][:DIGITS]}-{stem_of(value['target'], value['cores'])}-{digest[:DIGITS]}"


def _target(value: Mapping[str, Any]) -> str:
    cores = f", {value['cores']} cores" if value["cores"] else ""
    return f"{value['target']}{cores}"
