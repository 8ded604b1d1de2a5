"""Statements of the kind `triton`: their topic is Triton's key, their tree the files that Triton wrote under it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from opforge.cache import schema
from opforge.cache.layout import Layout
from opforge.cache.records import triton as records
from opforge.cache.records.triton import DIGITS, MAX_BYTES

from . import kinds, statements, topics
from .blobs import Tree
from .kinds import Kept, Kind, Shown, Stored
from .statements import Signed, Statement, UnreadableStatement

KIND = "triton"
UNSIGNED = "unsigned=1 is not enough for what Triton compiled, which is machine code"
FACTS = schema.record(records.FIELDS)


class KernelOffer(NamedTuple):
    """What a store says of one kernel, or of timings."""

    key: str
    facts: Mapping[str, str]
    tree: Tree

    @property
    def label(self) -> str:
        """What tells it from others of its name."""
        return self.tree.digest[:DIGITS]

    @property
    def subject(self) -> str:
        """What a key must be trusted for."""
        return f"{KIND}:{self.facts['name']}"

    @property
    def title(self) -> str:
        """What withdrawals call it."""
        return f"{self.subject}@{self.label}"


def statement(key: str, facts: Mapping[str, str], tree: Tree) -> Statement:
    """Returns what a publisher says of a kernel."""
    return Statement(KIND, key, (tree,), dict(facts))


def parse(data: bytes, key: str = "") -> KernelOffer:
    """Returns what a statement says of a kernel; its signature was verified before. Raises UnreadableStatement."""
    return offer_of(statements.parse_as(data, KIND, key))


def offer_of(stated: Statement) -> KernelOffer:
    """Returns what a statement of this kind says of a kernel. Raises UnreadableStatement."""
    facts = statements.facts_of(stated, FACTS)
    if not re.fullmatch(records.KEY, stated.topic):
        raise UnreadableStatement(f"its topic is {ascii(stated.topic)[:100]}: expected a key of Triton's")
    return KernelOffer(stated.topic, facts, statements.only_tree(stated, "the kernel's files", MAX_BYTES))


def topic_of(key: str) -> str:
    """Returns the name of the file that holds the statements for a key of Triton's."""
    return topics.name_of(KIND, key)


def merge(items: Sequence[Signed], item: Signed) -> list[Signed]:
    """Returns the statements of a topic with a new one, in the place of an earlier one by the same key.

    Two machines that compile one kernel need not get the same bytes. Either serves.
    """
    digest = parse(item.data).tree.digest
    kept = list[Signed]()
    for other in items:
        of_other = _digest_of(other) if other.signers == item.signers else ""
        if of_other == digest:
            return list(items)
        if not of_other:
            kept.append(other)
    return [*kept, item]


def _digest_of(item: Signed) -> str:
    try:
        return parse(item.data).tree.digest
    except ValueError:
        return ""  # of a newer opforge, or damaged: it stays


class TritonKind(Kind):
    """What Triton compiled or timed itself: any that has the key is right, and Triton makes what is missing."""

    name, is_inline, needs_withdrawals = KIND, True, True

    def subject(self, statement: Statement) -> str:
        """Returns the name of the kernel's function."""
        return offer_of(statement).facts["name"]

    def shown(self, statement: Statement) -> Shown:
        """Returns the kernel, the first digits of its tree's digest, and where it fits."""
        offer = offer_of(statement)
        return Shown(offer.facts["name"], offer.label, f"{offer.facts['target']}, Triton {offer.facts['triton']}")

    def stored(self, layout: Layout, owners: Collection[int]) -> Iterator[Stored]:
        """Compares every file of what Triton made with its digest."""
        for kernel in records.stored(layout.root):
            problem = kernel.problem
            try:
                records.read(kernel.folder, owners)
            except FileNotFoundError:
                continue  # another process has removed it
            except (OSError, ValueError) as error:
                problem = problem or getattr(error, "strerror", None) or str(error)
            yield Stored(f"{KIND}:{kernel.name}" if kernel.name else "", kernel.folder, problem)

    def kept(self, layout: Layout) -> Iterator[Kept]:
        """Yields what was fetched of what Triton made."""
        for kernel in records.stored(layout.root):
            if kernel.is_fetched:
                title, note = f"{kernel.name}@{kernel.label}", os.path.join(kernel.folder, records.FETCHED)
                remove = partial(records.remove, kernel.folder)
                yield kinds.of_note(f"{KIND}:{title}", f"Triton kernel {title}", note, remove)
