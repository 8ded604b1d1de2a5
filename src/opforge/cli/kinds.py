"""Names with their kinds on the command line, `KIND:NAME`, and their artifacts on this machine: a loop over the kinds.

An op needs no kind before its name, and neither does a package, which has a slash.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from opforge.remote.kind_table import FORMER, KINDS

from .output import show_table, size_text
from .selection import normalized
from .verbs import OTHERS, PLAIN, without_meaning

if TYPE_CHECKING:
    from opforge.remote.kinds import Kind, StoredArtifact


def by_kind(names: Sequence[str], verb: str, kind: str = "") -> dict[str, list[str]]:
    """Returns the names of each kind that lies in stores, without the kind before them.

    With `kind` a name without one is of that kind. Raises click.UsageError for a kind that the verb is not for, and for
    one that is gone.
    """
    named: dict[str, list[str]] = {each: [] for each in (*PLAIN, *OTHERS)}
    for name in names:
        before, colon, rest = name.partition(":")
        if colon and before in FORMER:
            instead = FORMER[before].replace("NAME", rest or "NAME")  # the same name, where its form is the same
            raise click.UsageError(f"{name!r} names a kind that is gone. Expected {instead}.")
        of_name = before if colon and before in KINDS else kind or ("package" if _is_package(name) else "op")
        if reason := without_meaning(verb, of_name):
            raise click.UsageError(f"opforge {verb.removesuffix(' URL')} is not for {name!r}: {reason}.")
        named[of_name].append(rest if of_name == before else name)
    return named


def _is_package(name: str) -> bool:
    """Returns whether a name without a kind is meant for a package: it has a slash, and is not the path of an entry."""
    return "/" in name and not os.path.isabs(name)


def of(name: str) -> Kind:
    """Returns the kind of a name in the table."""
    from opforge.remote import kinds

    kind = kinds.of(name)
    assert kind is not None
    return kind


def named_in(named: Mapping[str, Sequence[str]]) -> list[Kind]:
    """Returns the other kinds that have a name in `named`."""
    return [of(name) for name in OTHERS if named[name]]


def stored(kind: Kind, names: Sequence[str] | None = None) -> list[StoredArtifact]:
    """Returns the artifacts of a kind in the cache, or those with these names, as `ls` prints them; "*" is all.

    A name may be a glob, and may have the label: NAME@LABEL. Raises click.UsageError for one that stands for nothing.
    """
    from opforge.cache.current_store import own_store

    found = list(kind.stored(own_store().layout))
    if names is None or "*" in names:
        return found
    readable, chosen = [one for one in found if not one.problem], dict[str, Any]()
    for name in names:
        of_name = [one for one in readable if is_meant(kind, one.name, one.label, name)]
        if not of_name:
            raise click.UsageError(_unknown(kind, name, sorted({one.name for one in readable})))
        chosen |= {one.path: one for one in of_name}
    return [*chosen.values()]


def is_meant(kind: Kind, name: str, label: str, typed: str) -> bool:
    """Returns whether a typed name, without the kind, is meant for what has a name and a label, here or in a store.

    It may be a glob, and may have the label: NAME@LABEL. Of ops each form of the name will do.
    """
    if kind.is_of_op and ":" in typed:  # module:Class
        from .selection import own_class

        typed = str(own_class(typed).name)
    if kind.is_of_op and normalized(typed) == normalized(name):
        return True
    return typed == label or any(map(fnmatch.fnmatchcase, (name, f"{name}@{label}"), (typed, typed)))


def is_plain(name: str) -> bool:
    """Returns whether a typed name stands for one thing of the name, whatever its labels: for no glob, and no label."""
    return not {*name}.intersection("*?[@")


def _unknown(kind: Kind, name: str, there: Sequence[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, there, n=1)
    meant = f" Did you mean {kind.name}:{near[0]}?" if near else ""
    held = f"There are: {', '.join(there)}" if there else "Nothing of this kind is here"
    maker = f" {kind.maker}." if kind.maker else ""
    return f"there is no {kind.name}:{name} here. {held}.{meant}{maker}"


def counted(kind: Kind, number: int) -> str:
    """Returns a number with what the kind is called: "2 pages of a JIT"."""
    return f"{number} {kind.noun if number == 1 else plural(kind.noun)}"


def plural(noun: str) -> str:
    """Returns the plural of a noun: "pages of a JIT"."""
    return re.sub(r"(?= of | to |$)", "s", noun, count=1) if not noun.endswith("entry") else noun[:-1] + "ies"


def to_json(one: StoredArtifact) -> dict[str, Any]:
    """Returns the object that --json prints for an artifact. Its facts are those of a statement."""
    fields: Mapping[str, Any] = one._asdict()
    names = ("path", "problem", "name", "label", "target", "topic", "size")
    return {**{name: fields[name] for name in names}, "fetched": one.is_fetched, **one.facts}


def show(kind: Kind, found: Sequence[StoredArtifact]) -> None:
    """Prints a table."""
    rows = [
        (
            one.name if not one.problem else f"({one.problem})",
            one.target,
            one.details,
            size_text(one.size),
            "fetched" if one.is_fetched else "here",
            one.label,
            one.path,
        )
        for one in found
    ]
    columns = (kind.name.upper(), "TARGET", "DETAILS", "SIZE", "FROM", "LABEL", "PATH")
    show_table(columns, rows, numbers=("SIZE",), optional="PATH")
