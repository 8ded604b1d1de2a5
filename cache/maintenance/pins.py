"""Pinned entries, which no limit evicts. A pin is an empty file named by the entry's key."""

from __future__ import annotations

import os

from opforge.cache.filesystem.files import make_folder, write_file
from opforge.cache.layout import Layout


def pinned(layout: Layout) -> frozenset[str]:
    """Returns the keys of the pinned entries."""
    try:
        return frozenset(os.listdir(layout.path("pins")))
    except OSError:
        return frozenset()


def kept_entries(layout: Layout) -> int:
    """Returns how many pinned entries the store holds. A pin may outlive its entry, which was damaged."""
    return sum(os.path.isdir(layout.entry(key)) for key in pinned(layout))


def pin(layout: Layout, key: str) -> None:
    """Keeps an entry, whatever the limits."""
    make_folder(layout.path("pins"))
    write_file(layout.path("pins", key), b"")


def unpin(layout: Layout, key: str) -> None:
    """Makes an entry subject to the limits again."""
    try:
        os.unlink(layout.path("pins", key))
    except FileNotFoundError:
        return
