"""The bytes of a store's entries, and of all else that its size limit counts, as a sum: no build walks the store.

    v2/bytes    lines: "=N" was counted by a walk; "+N" and "-N" came and went since that walk began

Every publication and eviction appends a line. What comes during a walk is counted twice, so that it is never missed:
the sum may be too high, and a process that acts on it walks first. That walk also finds what a killed process did not
append.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from opforge.cache.areas import AREAS
from opforge.cache.layout import Layout
from opforge.cache.ownership import has_tag
from opforge.foundation.files import open_to_append, read_file, size_of, temp_path

FILE = "bytes"
RECLAIMABLE = tuple(name for name, area in AREAS.items() if area.is_counted)
"""The areas that the size limit counts besides entries, and empties before them. What is needed of them is made
again."""
MAX_BYTES = 64 << 10
"""The length of the file above which the store is walked again and the file is begun anew."""


@contextmanager
def appending(layout: Layout) -> Iterator[Callable[[int], None]]:
    """Yields a function that appends a change in bytes. Without a file it does nothing, since the next `total` walks.

    If another process begins the file anew meanwhile, the further changes are lost with the old one: the sum is then
    too high, never too low.
    """
    if not has_tag(layout.root):  # a layer has no sum, and its folder may be one of the user's
        yield lambda _change: None
        return
    try:
        handle = open_to_append(layout.path(FILE))
    except OSError:
        _remove(layout.path(FILE))
        yield lambda _change: None
        return

    def append(change: int) -> None:
        with suppress(OSError):
            os.write(handle, f"{change:+d}\n".encode())

    try:
        yield append
    finally:
        os.close(handle)


def _remove(path: str) -> None:
    """Removes a log that cannot be appended to: its sum would no longer change, and the limit would not be enforced."""
    with suppress(OSError):  # there is none, or a folder, which `total` cannot read either
        os.unlink(path)


def append(layout: Layout, change: int) -> None:
    """Appends one change in bytes."""
    with appending(layout) as append_change:
        append_change(change)


def total(layout: Layout) -> int:
    """Returns the bytes by the log's lines, or by a walk if they cannot be used."""
    try:
        counted, changed = None, 0
        for line in read_file(layout.path(FILE), MAX_BYTES).splitlines():
            if line[:1] == b"=":
                counted = int(line[1:])
            else:
                changed += int(line)
    except (OSError, ValueError):
        return measure(layout)
    return measure(layout) if counted is None else counted + changed


def measure(layout: Layout) -> int:
    """Walks the store and begins the log anew with the bytes that were counted; returns them."""
    path = layout.path(FILE)
    temporary = temp_path(path)
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return count(layout)
    try:
        os.replace(temporary, path)  # before the walk: from here on other processes append to this file
        size = count(layout)
        os.write(handle, f"={size}\n".encode())
    except OSError:
        return count(layout)
    finally:
        os.close(handle)
    return size


def count(layout: Layout) -> int:
    """Returns the bytes of all that the size limit counts, by a walk."""
    return sum(size_of(layout.path(area)) for area in ("entries", *RECLAIMABLE))
