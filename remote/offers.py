"""The offers of statements, and the policies by which a topic's file takes a new one: each kind names one policy.

Whatever the policy, what other keys have signed stays, and so does what this opforge cannot read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from .blobs import Tree
from .statements import MAX_SIGNATURES, Signed

MAX_PAGES = 8
"""How many statements of one key a topic of pages holds; a newer one takes the place of the oldest."""


class Offer(NamedTuple):
    """The artifact that a statement offers, of any kind."""

    kind: str
    name: str
    """The op, the package, the kernel: what a key must be trusted for, after the kind."""
    label: str
    """The label that distinguishes it from others of its topic: an op's entry, a package's version."""
    target: str
    """Its target, in words."""
    facts: Mapping[str, Any]
    trees: tuple[Tree, ...]
    title: str
    """Its title in withdrawals, with its kind."""

    @property
    def subject(self) -> str:
        """The scope that a key must be trusted for: KIND:NAME."""
        return f"{self.kind}:{self.name}"

    @property
    def tree(self) -> Tree:
        """Its only tree."""
        (tree,) = self.trees
        return tree


class Policy(NamedTuple):
    """Which earlier statements a topic keeps when a new one is added."""

    name: str
    """In words, for the documentation."""
    replaced: Callable[[Offer, Sequence[Offer]], Collection[str]]
    """Returns the labels of those of a key's own offers in a topic whose place a new one by that key takes."""


def _needless(new: Offer, mine: Sequence[Offer]) -> Collection[str]:
    parts = {*new.facts["parts"]}
    needless = {each.label for each in mine if {*each.facts["parts"]} <= parts}
    others = sorted((each for each in mine if each.label not in needless), key=lambda each: -each.facts["made"])
    return needless | {each.label for each in others[MAX_PAGES - 1 :]}


ANY_THAT_FITS = Policy("any that fits", lambda _new, _mine: ())
"""Keeps all: whoever asks takes any that fits."""
ONE_FOR_EACH_MACHINE = Policy(
    "one of a signer for each machine", lambda new, mine: [each.label for each in mine if each.target == new.target]
)
"""Replaces what is for the same machine."""
PAGES = Policy("pages of a signer", _needless)
"""Drops those whose parts the new one all has, and the oldest beyond MAX_PAGES."""
BY_LABEL = Policy("one for each label", lambda _new, _mine: ())
"""A topic that names its statements: a label never gets another one."""


def merged(before: Sequence[Signed], item: Signed, parse: Callable[[bytes], Offer], policy: Policy) -> list[Signed]:
    """Returns the statements of a topic with a new one, which has one signature or none.

    The same bytes get a further signature. What the same key has said of the same thing already stays as it is: two
    machines that make one thing need not get the same bytes of its statement.
    """
    new = parse(item.data)
    read = [(other, _readable(other, parse)) for other in before]
    for at, (other, offer) in enumerate(read):
        is_same = other.data == item.data
        if item.signers <= other.signers and (is_same or (offer and offer.label == new.label)):
            return list(before)
        if is_same:
            signatures = (*other.signatures, *item.signatures)[-MAX_SIGNATURES:]
            return [*before[:at], item._replace(signatures=signatures), *before[at + 1 :]]
    mine = {at: offer for at, (other, offer) in enumerate(read) if offer and other.signers <= item.signers}
    gone = policy.replaced(new, [*mine.values()])
    return [*(other for at, other in enumerate(before) if at not in mine or mine[at].label not in gone), item]


def _readable(item: Signed, parse: Callable[[bytes], Offer]) -> Offer | None:
    try:
        return parse(item.data)
    except ValueError:
        return None  # of a newer opforge, or damaged: it stays
