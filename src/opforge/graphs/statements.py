"""The kind `compiled`: its topic is a name and what its graphs follow from, its tree a bundle."""

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

from . import bundle, store, topic
from .bundle import DIGITS, FACTS, SIGNED, TREE, BundleError


class CompiledKind(Kind):
    """Bundles of compiled graphs: any that fits is right, and torch compiles what it lacks."""

    name, noun = "compiled", "bundle of compiled graphs"
    titles, title_form = rf"[\w-]+@[0-9a-f]{{{DIGITS}}}", "NAME@DIGITS"
    maker = "opforge.compiled(NAME) keeps them"
    unsigned = "unsigned=1 is not enough for compiled graphs, which hold pickles: sign them"
    merge = PAGES

    def offer(self, stated: Statement) -> Offer:
        """Returns what a statement says of a bundle. Raises UnreadableStatement."""
        facts = statements.facts_of(stated, FACTS)
        tree = statements.only_tree(stated, "the tree of the bundle", 2 * bundle.MAX_BYTES)
        if stated.topic != (expected := str(topic.of_facts(facts))):
            raise UnreadableStatement(f"its topic is {ascii(stated.topic)[:160]}, and its facts are of {expected}")
        return self.offered(facts["name"], tree.digest[:DIGITS], _target(facts), facts, (tree,))

    def problem(self, statement: Statement, folders: Mapping[str, str]) -> str:
        """Returns what is wrong with the files of the bundle."""
        ((digest, folder),) = folders.items()
        try:
            bundle.check_tree(folder, digest)
        except BundleError as error:
            return str(error)
        except OSError as error:
            return f"{bundle.ARTIFACTS} cannot be read ({error.strerror})"
        return ""

    def stored(self, layout: Layout) -> Iterator[StoredArtifact]:
        """Yields the bundles of all names."""
        return map(self.at, store.all_folders(layout))

    def at(self, folder: str) -> StoredArtifact:
        """Returns the bundle in a folder."""
        note = os.path.join(folder, SIGNED) if bundle.is_fetched(folder) else ""
        try:
            value = bundle.read_record(folder)
        except (OSError, BundleError) as error:
            return StoredArtifact(folder, str(error), size=size_of(folder), note=note)
        facts = value["facts"]
        return StoredArtifact(
            path=folder,
            name=facts["name"],
            label=value["tree"][:DIGITS],
            target=_target(facts),
            topic=str(topic.of_facts(facts)),
            facts=facts,
            digest=value["tree"],
            size=size_of(folder),
            note=note,
            details=f"{len(facts['parts'])} parts",
        )

    def check(self, one: StoredArtifact, owners: Collection[int]) -> str:
        """Compares the files of a bundle with its digest."""
        bundle.check_tree(os.path.join(one.path, TREE), one.digest, owners)
        expected = bundle.name_of(topic.of_facts(one.facts), one.digest)
        found = os.path.basename(one.path)
        return "" if found == expected else f"it is named {found}, expected {expected}"

    def files(self, one: StoredArtifact) -> tuple[str, Collection[str]]:
        """Returns the tree and its files."""
        folder = os.path.join(one.path, TREE)
        return folder, bundle.paths_in(folder)


COMPILED = CompiledKind()


def _target(facts: Mapping[str, Any]) -> str:
    return f"{facts['device']}, torch {facts['torch']}"
