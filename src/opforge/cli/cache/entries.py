"""The entries of a store that a command names: by op, by key, by the beginning of a key, or by path."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from opforge.cli.selection import near_names, normalized

if TYPE_CHECKING:
    from opforge.cache.layout import Layout
    from opforge.cache.maintenance.listing import StoredEntry

SHOWN_KEY = 12
"""How many letters of a key are shown."""
MAX_SHOWN = 6


def matching_entries(layout: Layout, names: Sequence[str], readable: bool = True) -> list[StoredEntry]:
    """Returns the entries that these names stand for, each once. All entries if no name is given.

    A name is an op's (all of its entries), or a glob over names of ops; the beginning of one key, also after the op as
    NAME@KEY; or the path of an entry or its library.

    Args:
        layout: The store.
        names: The names.
        readable: Whether an entry whose record cannot be read is left out.

    Raises:
        click.UsageError: A name stands for nothing, or begins several keys.
    """
    from opforge.cache.maintenance import listing

    stored = [entry for entry in listing.entries(layout) if not (readable and entry.problem)]
    if not names:
        return stored
    return list({entry.key: entry for name in names for entry in named_entries(stored, name)}.values())


def named_entries(stored: Sequence[StoredEntry], name: str) -> list[StoredEntry]:
    """Returns the stored entries that a name stands for, as `matching_entries` does."""
    if of_op := entries_of_op(stored, name):
        return of_op
    if of_glob := [entry for entry in stored if entry.op and fnmatch.fnmatchcase(entry.op, name)]:
        return of_glob
    op, at, key = name.partition("@")
    of_op = entries_of_op(stored, op) if at else []
    keyed = entries_with_key(of_op or stored, key if of_op else name)
    if len(keyed) > 1:
        raise click.UsageError(_ambiguous(name, keyed))
    if not keyed:
        raise click.UsageError(_unknown(name, stored))
    return keyed


def named_or_offered(stored: Sequence[StoredEntry], name: str, problem: click.UsageError) -> list[StoredEntry]:
    """Returns the entries that a name stands for, which is not offered because of `problem`.

    Raises click.UsageError for a name that stands for nothing here either: `problem`, with similar names of the cache.
    """
    try:
        return named_entries(stored, name)
    except click.UsageError as error:
        if len(entries_with_key(stored, name)) > 1:
            raise error from problem
        near = near_names(name, {entry.op for entry in stored if entry.op})
        suggestion = f" In the cache: {', '.join(near)}." if near else ""
        if _may_be_key(name):
            raise error from problem
        raise click.UsageError(f"{problem.format_message()}{suggestion}") from None


def entries_of_op(stored: Sequence[StoredEntry], name: str) -> list[StoredEntry]:
    """Returns the entries of an op, whose name may be in any of its forms."""
    form = normalized(name)
    return [entry for entry in stored if form and entry.op and normalized(entry.op) == form]


def entries_with_key(stored: Sequence[StoredEntry], name: str) -> list[StoredEntry]:
    """Returns the entry with this key or path; otherwise all whose keys begin so."""
    if os.sep in name:
        path = os.path.abspath(name)
        return [entry for entry in stored if path in (entry.path, os.path.dirname(entry.path))]
    exact = [entry for entry in stored if entry.key == name]
    return exact or [entry for entry in stored if name and entry.key.startswith(name)]


def _ambiguous(name: str, entries: Sequence[StoredEntry]) -> str:
    """Returns the message for the beginning of several keys. Each is shown up to where it differs from the others."""
    length = SHOWN_KEY
    while len({entry.key[:length] for entry in entries}) < len(entries):
        length += 1
    shown = [f"{entry.key[:length]} ({entry.op or entry.problem})" for entry in entries[:MAX_SHOWN]]
    more = [f"{len(entries) - MAX_SHOWN} more"] if len(entries) > MAX_SHOWN else []
    listed = ", ".join([*shown, *more])
    return f"{name!r} begins {len(entries)} keys: {listed}. Expected enough letters for one of them."


def _unknown(name: str, stored: Sequence[StoredEntry]) -> str:
    from difflib import get_close_matches

    ops = sorted({entry.op for entry in stored if entry.op})
    near = near_names(name, ops)
    if len(name) > 3 and _may_be_key(name):
        begins = {entry.key[: len(name)]: entry for entry in stored}
        keyed = [begins[begin] for begin in get_close_matches(name, list(begins), n=3, cutoff=0.7)]
        near = [*(f"{entry.key[:SHOWN_KEY]} ({entry.op})" for entry in keyed), *near]
    suggestion = f" Did you mean {' or '.join(near)}?" if near else ""
    held = ", ".join(ops) or "no entry"
    return f"{name!r} is neither an op nor a key in the cache, which holds: {held}.{suggestion}"


def _may_be_key(name: str) -> bool:
    return all(letter in "0123456789abcdef-" for letter in name)
