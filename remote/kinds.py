"""The kinds of artifacts: what differs between them. Everything else treats all statements alike."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, partial
from importlib import import_module
from typing import NamedTuple

from opforge.cache.layout import Layout
from opforge.cache.records import fetched

from .kind_table import KINDS
from .statements import Statement


class Shown(NamedTuple):
    """What a listing shows of a statement."""

    name: str
    """The op, or the package."""
    label: str
    """What tells it from others of its topic: an op's entry, a package's version."""
    target: str
    """What it is for."""


class Kept(NamedTuple):
    """Something that was fetched, as it is kept on this machine."""

    name: str
    """What withdrawals call it."""
    shown: str
    """What messages call it."""
    signers: Callable[[], Collection[str] | None]
    """Returns the names of the keys whose withdrawal counts; None if that cannot be read, and then anyone's does."""
    drop: Callable[[], object]
    """Removes it, or makes sure that it is not found any more."""


class Stored(NamedTuple):
    """Something of a kind in a store of this machine, after a full check."""

    name: str
    """As commands name it; empty if that cannot be read."""
    path: str
    problem: str
    """What is damaged; empty if nothing is."""


class Kind(ABC):
    """What is particular to a kind. A statement of a kind that is unknown is kept and copied, and never used."""

    name: str
    """As it stands in statements and in the names of topics."""
    is_inline: bool
    """Whether its statements stand in the topic's file. Otherwise that names them by digest and label."""
    needs_withdrawals: bool
    """Whether a list of withdrawals of a signer is required. Otherwise one that is there counts."""
    is_released: bool = False
    """Whether a statement counts only if the list of its signer names it."""

    @abstractmethod
    def subject(self, statement: Statement) -> str:
        """Returns the name that a key must be allowed to sign. Raises ValueError."""

    @abstractmethod
    def shown(self, statement: Statement) -> Shown:
        """Returns what a listing shows. Raises ValueError for facts that cannot be read."""

    def canonical(self, label: str) -> str:
        """Returns a label in the form that is the same for all labels of one thing."""
        return label

    def title(self, shown: Shown) -> str:
        """Returns what withdrawals call a statement, after its kind."""
        return f"{shown.name}@{self.canonical(shown.label)}"

    def problem(self, statement: Statement, folders: Mapping[str, str]) -> str:
        """Returns what is wrong with unpacked trees, beyond their digests, or an empty text.

        `folders` are those of the statement's trees, by their digests.
        """
        return ""

    def stored(self, layout: Layout, owners: Collection[int]) -> Iterable[Stored]:
        """Checks all of this kind in a store of this machine in full. By default there is none: it lies elsewhere.

        `owners` are the users that its files may belong to. Ops have a check of their own: cache/maintenance/verify.py.
        """
        return ()

    def kept(self, layout: Layout) -> Iterable[Kept]:
        """Returns what of this kind was fetched into a store. By default nothing: it lies elsewhere, or is not kept."""
        return ()


def of(name: str) -> Kind | None:
    """Returns the kind of this name; None if it is unknown here."""
    return _kind_at(KINDS[name].path) if name in KINDS else None


def of_note(name: str, shown: str, path: str, remove: Callable[[], object] | None = None) -> Kept:
    """Returns something whose statement is kept in a file. Without `remove` that file is removed in its place."""

    def signers() -> tuple[str] | None:
        try:
            return (fetched.read(path).signer,)
        except (OSError, ValueError):
            return None

    return Kept(name, shown, signers, remove or partial(drop, path))


def drop(path: str) -> None:
    """Removes what is kept of a statement: what it brought is not found any more."""
    try:
        os.unlink(path)
    except OSError:
        return  # another process was first


@cache
def _kind_at(path: str) -> Kind:
    module, _, attribute = path.partition(":")
    kind: Kind = getattr(import_module(module), attribute)()
    return kind
