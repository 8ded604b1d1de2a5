"""The bytes of a store's entries, objects and Triton kernels, as a running sum: no build walks the store.

    v2/bytes    lines: "=N" was counted by a walk; "+N" and "-N" came and went since that walk began

Every publication and eviction appends a line. What comes during a walk is counted twice, so that it is never missed:
the sum may be too high, and a process that acts on it walks first. That walk also finds what a killed process did not
append.
"""

from __future__ import annotations

import os

from opforge.cache.filesystem.files import append_to_file, read_file, size_of, temp_path
from opforge.cache.layout import Layout

FILE = "bytes"
RECLAIMABLE = ("objects", "triton")
"""The areas that the size limit counts besides entries, and empties before them. Each of their folders is made again
when it is needed."""
MAX_BYTES = 64 << 10
"""The length of the file above which the store is walked again and the file is begun anew."""


def append(layout: Layout, change: int) -> None:
    """Appends a change in bytes. Without a file nothing is appended, since the next `total` walks."""
    try:
        append_to_file(layout.path(FILE), f"{change:+d}\n".encode())
    except OSError:
        return


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
