"""The kinds of artifacts, with all differences between them. Other code treats all alike, in a loop over their table.

A kind says what a statement offers, what of it lies in a store of this machine, and which policy merges a topic.
Publishing (`publish`), fetching (`take`), verifying again (`kept`) and all commands are written once.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pkgutil import resolve_name
from typing import Any, ClassVar, NamedTuple

from opforge.cache.layout import Layout
from opforge.foundation.files import discard

from . import statements, topics
from .blobs import Tree
from .kind_table import KINDS
from .offers import ANY_THAT_FITS, Offer, Policy
from .remotes import Remote
from .statements import Statement
from .stores.protocol import ObjectStore
from .withdrawal_lists import Withdrawals


class StoredArtifact(NamedTuple):
    """Something of a kind in a store of this machine, as its record describes it: its files are not compared."""

    path: str
    """The file or the folder."""
    problem: str = ""
    """Why its record cannot be used; then only its path, size and note are known."""
    name: str = ""
    """Its name in commands and in scopes of keys, after the kind."""
    label: str = ""
    """The label that distinguishes it from others of its name, as in an offer."""
    target: str = ""
    """Its target, in words."""
    topic: str = ""
    facts: Mapping[str, Any] = {}
    """Its facts, as a statement holds them."""
    digest: str = ""
    """Of the tree that is published; empty if its facts are all there is."""
    size: int = 0
    """Bytes of its files."""
    note: str = ""
    """The file with the statement by which it was fetched; empty if it was made here."""
    details: str = ""
    """Further details for a listing."""

    @property
    def is_fetched(self) -> bool:
        """Whether a remote had it: then another has signed it."""
        return bool(self.note)


class Kind(ABC):
    """The properties and methods of one kind. A statement of an unknown kind is kept and copied, and never used."""

    name: ClassVar[str]
    """As it stands in statements and in the names of topics."""
    noun: ClassVar[str]
    """Noun for one artifact of the kind, in messages."""
    is_inline: ClassVar[bool] = True
    """Whether its statements stand in the topic's file. Otherwise that names them by digest and label."""
    needs_withdrawals: ClassVar[bool] = True
    """Whether a list of withdrawals of a signer is required. Otherwise one that is there counts."""
    is_released: ClassVar[bool] = False
    """Whether a statement counts only if the list of its signer names it."""
    unsigned: ClassVar[str] = ""
    """Why it is never taken from a remote with unsigned=1; empty if it may be."""
    merge: ClassVar[Policy] = ANY_THAT_FITS
    """Which earlier statements a topic keeps when a new one is added."""
    has_unique_labels: ClassVar[bool] = False
    """Whether a label alone tells it from all others of the kind."""
    is_of_op: ClassVar[bool] = False
    """Whether its names are those of ops, which have several forms."""
    titles: ClassVar[str] = ""
    """Pattern of its titles in withdrawals, after the kind."""
    title_form: ClassVar[str] = ""
    """The same in words, for messages."""
    maker: ClassVar[str] = ""
    """How such an artifact is made, in a sentence: advice for a name that does not exist."""

    # -- what a statement says -----------------------------------------------------------------------------------------

    @abstractmethod
    def offer(self, stated: Statement) -> Offer:
        """Returns the offer in a statement of this kind. Raises ValueError for facts that cannot be used."""

    def parse(self, data: bytes, topic: str = "") -> Offer:
        """Returns the offer in signed bytes, which were verified before.

        Raises UnreadableStatement, also if they were made for another topic than `topic`, unless that is empty.
        """
        return self.offer(statements.parse_as(data, self.name, topic))

    def topic_file(self, topic: str) -> str:
        """Returns the name of the file of a topic in a store."""
        return topics.name_of(self.name, topic)

    def offered(
        self, name: str, label: str, target: str, facts: Mapping[str, Any], trees: Sequence[Tree] = ()
    ) -> Offer:
        """Returns an offer of this kind."""
        return Offer(self.name, name, label, target, facts, tuple(trees), self.title(name, label))

    def title(self, name: str, label: str) -> str:
        """Returns the name of an artifact of this kind in lists of withdrawals."""
        return f"{self.name}:{label}" if self.has_unique_labels else f"{self.name}:{name}@{self.canonical(label)}"

    def canonical(self, label: str) -> str:
        """Returns a label in the form that is the same for all labels of one thing."""
        return label

    def withdrawable(self, store: ObjectStore, text: str, released: Mapping[str, Mapping[str, str]]) -> str:
        """Returns the name in lists of withdrawals of an artifact whose title was typed, without the kind before it.

        `released` are the digests in the list of the key that withdraws it, by KIND:TOPIC and label.

        Raises ValueError for what is none, and PublishError if the store must have it and lacks it.
        """
        if not re.fullmatch(self.titles, text):
            raise ValueError(f"expected {self.name}:{self.title_form}, as opforge ls URL shows it")
        return f"{self.name}:{text}"

    def problem(self, statement: Statement, folders: Mapping[str, str]) -> str:
        """Returns the problem of unpacked trees whose digests are right; empty if there is none.

        `folders` are those of the statement's trees, by their digests.
        """
        return ""

    # -- what is stored on this machine --------------------------------------------------------------------------------

    def stored(self, layout: Layout) -> Iterable[StoredArtifact]:
        """Returns the artifacts of this kind in a store. By default none: they lie elsewhere."""
        return ()

    def check(self, one: StoredArtifact, owners: Collection[int]) -> str:
        """Returns the damage that a full check finds in an artifact that `stored` has returned without a problem.

        `owners` are the users that its files may belong to. Raises OSError, ValueError.
        """
        return ""

    def kept(self, layout: Layout) -> Iterable[StoredArtifact]:
        """Returns the artifacts of this kind that were fetched into a store, each as `drop` removes it."""
        return (one for one in self.stored(layout) if one.is_fetched and not one.problem)

    def drop(self, one: StoredArtifact) -> None:
        """Removes something from a store, or makes sure that it is not found any more. Raises OSError."""
        discard(one.path)

    def note_withdrawals(self, listed: Withdrawals) -> None:
        """Notes what a list says of artifacts of this kind that lie in no store."""
        return  # by default there are none

    # -- publishing ----------------------------------------------------------------------------------------------------

    def origin(self, one: StoredArtifact) -> str:
        """Returns where something came from; empty if it was made here, and may be signed here."""
        return "a remote" if one.is_fetched else ""

    def refusal(self, one: StoredArtifact, remote: Remote) -> tuple[str, str]:
        """Returns why something of this machine must not be published to a remote, and what to do; empty if it may."""
        return "", ""

    def files(self, one: StoredArtifact) -> tuple[str, Collection[str]]:
        """Returns the folder of what is published, and the paths of its files; none if the facts are all there is."""
        return "", ()


def of(name: str) -> Kind | None:
    """Returns the kind of this name; None if it is unknown here."""
    return _kind_at(KINDS[name].path) if name in KINDS else None


def every() -> list[Kind]:
    """Returns all kinds, in the order of their table."""
    return [_kind_at(entry.path) for entry in KINDS.values()]


@cache
def _kind_at(path: str) -> Kind:
    kind: Kind = resolve_name(path)
    return kind
