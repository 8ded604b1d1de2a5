"""The bytes that a store's entries, objects and Triton kernels take, as a running sum: no build walks the store.

    v1/bytes    lines: "=N", counted by a walk; "+N" and "-N", what came and went since that walk began

Whoever publishes or evicts appends a line. What came during the walk is counted twice rather than not at all, so the
sum may be too high, and whoever acts on it walks first. A line that is lost with its process is found by that walk.
"""

from __future__ import annotations

import os

from opforge.cache.filesystem.files import size_of
from opforge.cache.layout import Layout

FILE = "bytes"
SPARE = ("objects", "triton")
"""What the size limit counts besides entries, and takes before them: a folder for each thing, made again when
needed."""
LONGEST = 64 << 10
"""Bytes of the file after which the store is walked again, and the file begun anew."""


def note(layout: Layout, change: int) -> None:
    """Add a line. Without a file there is nothing to add to: the next look walks."""
    try:
        handle = os.open(layout.path(FILE), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(handle, f"{change:+d}\n".encode())
    except OSError:
        return
    finally:
        os.close(handle)


def total(layout: Layout) -> int:
    """The bytes as far as the lines tell, or counted by a walk where they do not."""
    try:
        with open(layout.path(FILE), "rb") as file:
            lines = file.read(LONGEST + 1)
        counted, changed = None, 0
        for line in lines.splitlines() if len(lines) <= LONGEST else ():
            if line[:1] == b"=":
                counted = int(line[1:])
            else:
                changed += int(line)
    except (OSError, ValueError):
        return measure(layout)
    return measure(layout) if counted is None else counted + changed


def measure(layout: Layout) -> int:
    """Walk the store, and begin the lines anew with what was found."""
    path = layout.path(FILE)
    draft = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return count(layout)
    try:
        os.replace(draft, path)  # from here on the others add to this file
        found = count(layout)
        os.write(handle, f"={found}\n".encode())
    except OSError:
        return count(layout)
    finally:
        os.close(handle)
    return found


def count(layout: Layout) -> int:
    """The bytes of all that the size limit counts, by a walk."""
    return sum(size_of(layout.path(area)) for area in ("entries", *SPARE))
