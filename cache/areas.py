"""The areas of a store: one line for each folder, from which its names, its age and its size follow.

A kind of artifacts that keeps its own in a store needs a line here, and nothing else in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .layout import FETCHED

DAY = 24 * 3600.0
KEY = "[0-9a-f]{32}"
ENTRY = f"{KEY}-[0-9a-f]{{8}}"
PAGE = rf"{KEY}\.[0-9a-f]{{16}}"


class Area(NamedTuple):
    """A folder of a store."""

    names: str
    """The names that opforge makes in it, as a regular expression."""
    noun: str = ""
    """Noun for one item in messages of `gc`; empty if `gc` does not remove any."""
    seconds: float = 0.0
    """How long its contents are kept, from their last use on as far as it is noted; 0 for no such limit. What is needed
    again is made again."""
    inner: str = ""
    """The names of single files in its folders that are removed one by one."""
    is_counted: bool = False
    """Whether the size limit counts it besides entries, and empties it before them."""
    lock: str = ""
    """The names of its own locks."""


AREAS: Mapping[str, Area] = {
    "descriptions": Area(KEY, "description", inner=ENTRY),
    "entries": Area(ENTRY),
    "failures": Area(rf"{KEY}\.json", "failure", DAY),
    FETCHED: Area(KEY, "pointer to a fetched entry", inner=ENTRY),
    "jit": Area(PAGE, "page of a JIT", 30 * DAY, is_counted=True, lock=f"jit-{KEY}"),
    "locks": Area("", "lock", 7 * DAY),
    "logs": Area(rf"{KEY}\.log", "log", 7 * DAY),
    "objects": Area(KEY, "object", 30 * DAY, inner=r"[0-9a-f]{64}\.(?:o|json)", is_counted=True),
    "peaks": Area(KEY, "memory record", 180 * DAY),
    "pins": Area(ENTRY, "pin"),
    "plans": Area(KEY, "pointer", inner=ENTRY),
    # The name of anything that `staging.set_aside` moves.
    "quarantine": Area(r"[^/]+\.[0-9]+\.[0-9a-f]{8}", "quarantined folder", 7 * DAY, is_counted=True),
    "sources": Area(KEY, "source", 30 * DAY),
    "staging": Area(r"[\w-]{1,12}\.[^/]+\.[0-9]+-(?:[0-9]+|running)?\.[0-9a-f]{8}", "abandoned build"),
    "toolchains": Area(rf"(?:{KEY}|packages)\.json", "compiler record", 30 * DAY),
    "tuned": Area(KEY, inner=r"[^/]+\.(?:json|fetched)"),
}


def names_in(area: str) -> str:
    """Returns the names that opforge makes in an area, as a regular expression; empty for an unknown area."""
    if area == "locks":
        return rf"(?:{'|'.join([KEY, *(each.lock for each in AREAS.values() if each.lock)])})(?:\.owner)?"
    return AREAS[area].names if area in AREAS else ""
