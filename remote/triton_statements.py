"""The kind `triton`: its topic is Triton's key, its tree the files that Triton wrote under it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping

from opforge.cache import schema
from opforge.cache.filesystem.files import size_of
from opforge.cache.layout import Layout
from opforge.cache.records import triton as records
from opforge.cache.records.triton import DIGITS, MAX_BYTES, Kernel
from opforge.cache.trees import path_problem

from . import statements
from .kinds import Kind, Stored
from .offers import NEWEST_OF_SIGNER, Offer
from .statements import Statement, UnreadableStatement

FACTS = schema.record(records.FIELDS)


class TritonKind(Kind):
    """What Triton compiled or timed itself: any that has the key is right, and Triton makes what is missing."""

    name, noun = "triton", "Triton kernel"
    titles, title_form = rf"\w{{1,{records.MAX_NAME}}}@[0-9a-f]{{{DIGITS}}}", "NAME@DIGITS"
    maker = "opforge.triton_cache() keeps them"
    unsigned = "unsigned=1 is not enough for what Triton compiled, which is machine code"
    merge = NEWEST_OF_SIGNER

    def offer(self, stated: Statement) -> Offer:
        """Returns what a statement says of a kernel, or of timings. Raises UnreadableStatement."""
        facts = statements.facts_of(stated, FACTS)
        if not re.fullmatch(records.KEY, stated.topic):
            raise UnreadableStatement(f"its topic is {ascii(stated.topic)[:100]}: expected a key of Triton's")
        tree = statements.only_tree(stated, "the kernel's files", MAX_BYTES)
        return self.offered(facts["name"], tree.digest[:DIGITS], _target(facts), facts, (tree,))

    def of(self, kernel: Kernel) -> Stored:
        """Returns a kernel as one that is stored."""
        note, size = os.path.join(kernel.folder, records.FETCHED) if kernel.is_fetched else "", size_of(kernel.folder)
        if kernel.problem:
            return Stored(kernel.folder, kernel.problem, size=size, note=note)
        return Stored(
            path=kernel.folder,
            name=kernel.name,
            label=kernel.label,
            target=_target(kernel.facts),
            topic=kernel.key,
            facts=kernel.facts,
            digest=kernel.digest,
            size=size,
            note=note,
        )

    def stored(self, layout: Layout) -> Iterator[Stored]:
        """Yields what is finished."""
        return map(self.of, records.stored(layout.root))

    def check(self, one: Stored, owners: Collection[int]) -> str:
        """Compares every file with its digest."""
        records.read(one.path, owners)
        return ""

    def files(self, one: Stored) -> tuple[str, Collection[str]]:
        """Returns the folder and the files that its record names. Raises ValueError for the name of no file."""
        paths = records.files_in(one.path)
        if problem := next(filter(None, map(path_problem, paths)), ""):
            raise ValueError(problem)
        return one.path, paths


TRITON = TritonKind()


def _target(facts: Mapping[str, str]) -> str:
    return f"{facts['target']}, Triton {facts['triton']}"
