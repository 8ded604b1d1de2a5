"""Remembers what a look-up came to, so that the next one need not make a plan to arrive there.

A plan is a pure function of what a builder declares, of the environment's variables, of the compiler, and of opforge's
own code. An answer is filed under the first two and where the roots lie, and holds the stamps of the others, of the
folders on PATH where an earlier compiler would appear, and the ticket of the entry. Any stamp that differs sends the
look-up the long way.

    v1/answers/QUESTION.json
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from opforge.cache import tickets
from opforge.cache.disk import Disk
from opforge.cache.entry import Entry, is_record
from opforge.cache.keys import KEY_LENGTH

from . import abis, plan, planning, roots
from .toolchains import host, identity

if TYPE_CHECKING:
    from opforge.cache.store import Store

    from .base import OpBuilder

FORMAT = 1
CODE = tuple(str(module.__file__) for module in (abis, plan, planning, roots, host, identity))
UNUSABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)


def recall(builder: OpBuilder, store: Store, places: Mapping[str, str]) -> Entry | None:
    """The entry that this question led to before, checked, if nothing that led there has changed; otherwise None."""
    path = _file(builder, store, places)
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            answer = json.load(file)
        ticket = answer["ticket"]
        if answer["format"] != FORMAT or ticket["format"] != tickets.FORMAT or not is_record(ticket["binary"]):
            return None
        if answer["stamps"].keys() != _watched(answer["programs"]).keys():
            return None
        if any(_stamp(store.disk, one) != stamp for one, stamp in answer["stamps"].items()):
            return None
        if any(os.path.lexists(one) for one in answer["absent"]):
            return None
        if not tickets.holds_by_stamps(ticket, places, store.disk):
            return None
        return store.take(ticket, (path, answer["filed"]))
    except UNUSABLE:
        return None


def remember(builder: OpBuilder, store: Store, places: Mapping[str, str], plan_key: str, entry: Entry) -> None:
    """File an answer. Failing to costs the next look-up a plan, nothing else."""
    from opforge.cache.layout import make_folder, write_file

    path = _file(builder, store, places)
    if path is None or not entry.ticket:
        return
    programs = sorted(builder.toolchain(store).programs())
    answer = {
        "format": FORMAT,
        "programs": programs,
        "stamps": {one: _stamp(store.disk, one) for one in _watched(programs)},
        "absent": _absent(builder, places),
        "ticket": entry.ticket,
        "filed": store.ticket_path(plan_key, entry.result, places),
    }
    try:
        make_folder(store.layout.path("answers"))
        write_file(path, json.dumps(answer).encode())
    except OSError:
        return


def _file(builder: OpBuilder, store: Store, places: Mapping[str, str]) -> str | None:
    """Where the answer to this builder's question lies; None where the builder makes its plans in its own way."""
    question = builder.question()
    if question is None:
        return None
    asked = [FORMAT, question, [os.environ.get(name) for name in host.READ], sorted(places.items())]
    # Plain strings and lists have one repr; it takes a third of the time that canonical JSON does.
    name = hashlib.sha256(repr(asked).encode("utf-8", "surrogateescape")).hexdigest()[:KEY_LENGTH]
    return f"{store.layout.path('answers')}/{name}.json"


def _watched(programs: list[str]) -> dict[str, None]:
    """The paths whose stamps an answer holds: the compiler's programs, the folders on PATH, and our own code."""
    return dict.fromkeys([*programs, *filter(None, os.environ.get("PATH", os.defpath).split(os.pathsep)), *CODE])


def _stamp(disk: Disk, path: str) -> list[int]:
    return list(disk.stamp(path) or ())


def _absent(builder: OpBuilder, places: Mapping[str, str]) -> list[str]:
    """The paths at which an earlier root would answer for one of the builder's sources or folders."""
    found = []
    for name in (*builder.sources, *builder.include_dirs):
        if not os.path.isabs(name):
            for root in builder.search_roots():
                path = os.path.join(root.path, name)
                if os.path.exists(path):
                    break
                found.append(path)
    return found
