"""Entries that are to stay: no limit evicts a pinned one. A pin is an empty file of the entry's name."""

from __future__ import annotations

import os

from opforge.cache.filesystem.files import make_folder, write_file
from opforge.cache.layout import Layout


def pinned(layout: Layout) -> frozenset[str]:
    """The results that are pinned."""
    try:
        return frozenset(os.listdir(layout.path("pins")))
    except OSError:
        return frozenset()


def pin(layout: Layout, result: str) -> None:
    """Keep an entry, whatever the limits say."""
    make_folder(layout.path("pins"))
    write_file(layout.path("pins", result), b"")


def unpin(layout: Layout, result: str) -> None:
    """Let the limits decide again."""
    try:
        os.unlink(layout.path("pins", result))
    except FileNotFoundError:
        return
