"""Statements of the kind `compiled`: their topic is a name and what its graphs follow from, their tree a bundle."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from opforge.cache.layout import Layout
from opforge.remote import kinds, statements
from opforge.remote.blobs import Tree
from opforge.remote.kinds import Kept, Kind, Shown, Stored
from opforge.remote.statements import Statement, UnreadableStatement

from . import bundle, store, topic
from .bundle import DIGITS, FACTS, SIGNED, BundleError
from .topic import Topic

KIND = "compiled"


class Offer(NamedTuple):
    """What a store says of one bundle."""

    facts: Mapping[str, Any]
    tree: Tree

    @property
    def label(self) -> str:
        """What tells it from others of its topic."""
        return self.tree.digest[:DIGITS]

    @property
    def subject(self) -> str:
        """What a key must be trusted for."""
        return f"{KIND}:{self.facts['name']}"

    @property
    def title(self) -> str:
        """What withdrawals call it."""
        return f"{self.subject}@{self.label}"


def statement(where: Topic, facts: Mapping[str, Any], tree: Tree) -> Statement:
    """Returns what a publisher says of a bundle."""
    return Statement(KIND, str(where), (tree,), dict(facts))


def parse(data: bytes, where: Topic | None = None) -> Offer:
    """Returns what a statement says of a bundle; its signature was verified before.

    Raises UnreadableStatement, also if it was made for another topic than `where`, unless that is None.
    """
    return offer_of(statements.parse_as(data, KIND, str(where) if where else ""))


def offer_of(stated: Statement) -> Offer:
    """Returns what a statement of this kind says of a bundle. Raises UnreadableStatement."""
    facts = statements.facts_of(stated, FACTS)
    tree = statements.only_tree(stated, "the tree of the bundle", 2 * bundle.MAX_BYTES)
    if stated.topic != (expected := str(topic.of_facts(facts))):
        raise UnreadableStatement(f"its topic is {ascii(stated.topic)[:160]}, and its facts are of {expected}")
    return Offer(facts, tree)


class CompiledKind(Kind):
    """Bundles of compiled graphs: any that fits is right, and torch compiles what it lacks."""

    name, is_inline, needs_withdrawals = KIND, True, True

    def subject(self, statement: Statement) -> str:
        """Returns the name that `opforge.compiled` is given."""
        return str(offer_of(statement).facts["name"])

    def shown(self, statement: Statement) -> Shown:
        """Returns the name, the first digits of its tree's digest, and where it fits."""
        offer = offer_of(statement)
        target = f"{offer.facts['device']}, torch {offer.facts['torch']}"
        return Shown(offer.facts["name"], offer.label, target)

    def problem(self, statement: Statement, folders: Mapping[str, str]) -> str:
        """Returns what is wrong with the files of the bundle."""
        offer = offer_of(statement)
        try:
            bundle.check_tree(folders[offer.tree.digest], offer.tree.digest)
        except BundleError as error:
            return str(error)
        except OSError as error:
            return f"{bundle.ARTIFACTS} cannot be read ({error.strerror})"
        return ""

    def stored(self, layout: Layout, owners: Collection[int]) -> Iterator[Stored]:
        """Compares the files of every bundle with its digest."""
        for folder in store.all_folders(layout):
            name, problem = "", ""
            try:
                value = bundle.read_record(folder)
                name = f"{KIND}:{value['facts']['name']}"
                bundle.check_tree(os.path.join(folder, bundle.TREE), value["tree"], owners)
                expected = bundle.name_of(topic.of_facts(value["facts"]), value["tree"])
                if os.path.basename(folder) != expected:
                    problem = f"it is named {os.path.basename(folder)}, expected {expected}"
            except BundleError as error:
                problem = str(error)
            except OSError as error:
                if not os.path.isdir(folder):
                    continue  # another process has removed it
                problem = f"it cannot be read ({error.strerror})"
            yield Stored(name, folder, problem)

    def kept(self, layout: Layout) -> Iterator[Kept]:
        """Yields the bundles that were fetched, of every name."""
        for folder in store.all_folders(layout):
            try:
                value = bundle.read_record(folder)
            except (OSError, BundleError):
                continue  # its use says what is wrong
            if bundle.is_fetched(folder):
                title = f"{value['facts']['name']}@{value['tree'][:DIGITS]}"
                note, remove = os.path.join(folder, SIGNED), partial(store.remove, folder)
                yield kinds.of_note(f"{KIND}:{title}", f"bundle {title} of compiled graphs", note, remove)
