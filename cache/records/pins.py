"""Pinned entries, which no limit evicts: `opforge cache pin` makes a file for each.

v2/pins/ENTRY    an empty file
"""

from __future__ import annotations

import os
from contextlib import suppress

from opforge.cache.layout import Layout
from opforge.foundation.files import make_folder, write_file

AREA = "pins"


def pin(layout: Layout, key: str) -> None:
    """Keeps an entry, whatever the limits. Raises OSError if the store cannot be written."""
    make_folder(layout.path(AREA))
    write_file(layout.path(AREA, key), b"")


def unpin(layout: Layout, key: str) -> None:
    """Makes an entry subject to the limits again."""
    with suppress(FileNotFoundError):
        os.unlink(layout.path(AREA, key))


def pinned(layout: Layout) -> frozenset[str]:
    """Returns the names of the pinned entries. An entry may be gone: its pin holds for the next one of that name.

    Raises OSError if they cannot be listed: then nothing must be evicted.
    """
    try:
        return frozenset(os.listdir(layout.path(AREA)))
    except FileNotFoundError:
        return frozenset()


def kept_entries(layout: Layout) -> int:
    """Returns how many pinned entries the store holds. A pin may outlive its entry, which was damaged."""
    return sum(os.path.isdir(layout.entry(key)) for key in pinned(layout))
