"""The kind `jit`: its topic is the adapter, a label, and a fingerprint; its tree is a page of entries."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from opforge.cache.layout import Layout
from opforge.foundation.files import size_of
from opforge.remote import statements
from opforge.remote.kinds import Kind, StoredArtifact
from opforge.remote.offers import PAGES, Offer
from opforge.remote.statements import Statement, UnreadableStatement

from . import page
from .page import ADAPTER, DIGITS, FACTS, LABEL, SIGNED, TREE, PageError


class JitKind(Kind):
    """Pages of what JITs compile: any that has a key is right, and the JIT compiles what they lack."""

    name, noun = "jit", "page of a JIT"
    titles, title_form = rf"{ADAPTER}/{LABEL}@[0-9a-f]{{{DIGITS}}}", "ADAPTER/LABEL@DIGITS"
    maker = "opforge.warm(LABEL) keeps them, and opforge.compiled(NAME) those of torch.compile"
    unsigned = "unsigned=1 is not enough for what a JIT compiled, which is machine code: sign it"
    merge = PAGES

    def offer(self, stated: Statement) -> Offer:
        """Returns what a statement says of a page. Raises UnreadableStatement."""
        facts = statements.facts_of(stated, FACTS)
        tree = statements.only_tree(stated, "the tree of the page", 2 * page.MAX_BYTES)
        where = page.topic_of(facts)
        if stated.topic != str(where):
            raise UnreadableStatement(f"its topic is {ascii(stated.topic)[:160]}, and its facts are of {where}")
        return self.offered(where.name, tree.digest[:DIGITS], _target(facts), facts, (tree,))

    def problem(self, statement: Statement, folders: Mapping[str, str]) -> str:
        """Returns what is wrong with the files of a page."""
        ((digest, folder),) = folders.items()
        try:
            page.check_tree(folder, digest)
        except (OSError, PageError) as error:
            return str(error)
        return ""

    def stored(self, layout: Layout) -> Iterator[StoredArtifact]:
        """Yields the pages of all topics."""
        return map(self.at, page.folders(layout))

    def at(self, folder: str) -> StoredArtifact:
        """Returns the page in a folder."""
        note, size = os.path.join(folder, SIGNED) if page.is_fetched(folder) else "", size_of(folder)
        try:
            value = page.read_record(folder)
        except (OSError, PageError) as error:
            return StoredArtifact(folder, str(error), size=size, note=note)
        facts, where = value["facts"], page.topic_of(value["facts"])
        return StoredArtifact(
            path=folder,
            name=where.name,
            label=value["tree"][:DIGITS],
            target=_target(facts),
            topic=str(where),
            facts=facts,
            digest=value["tree"],
            size=size,
            note=note,
            details=f"{len(facts['parts'])} {'entry' if len(facts['parts']) == 1 else 'entries'}",
        )

    def check(self, one: StoredArtifact, owners: Collection[int]) -> str:
        """Compares the files of a page with its digest."""
        page.check_tree(os.path.join(one.path, TREE), one.digest, owners)
        expected = page.name_of(page.topic_of(one.facts), one.digest)
        found = os.path.basename(one.path)
        return "" if found == expected else f"it is named {found}, expected {expected}"

    def files(self, one: StoredArtifact) -> tuple[str, Collection[str]]:
        """Returns the tree and its files."""
        return os.path.join(one.path, TREE), page.paths_in(one.path)


JIT = JitKind()


def _target(facts: Mapping[str, Any]) -> str:
    """Returns the fingerprint in words: what it has, but for the format."""
    return ", ".join(f"{name} {value}" for name, value in facts["fingerprint"].items() if value and name != "format")
