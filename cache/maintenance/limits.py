"""Keeps a store within its limits after each build. Checking reads the running sum; evicting reads all entries."""

from __future__ import annotations

import os
import time

from opforge.cache.filesystem.files import write_file
from opforge.cache.layout import Layout
from opforge.cache.records import size_log

from . import gc

AGE_CHECK_SECONDS = 24 * 3600.0
"""How long after a check of the ages the next one is made."""
SWEPT = "swept"


def enforce(layout: Layout, max_size: int | None, max_age: float | None) -> int:
    """Evicts what is over the limits, the least recently used first; returns how many things were removed.

    The size (bytes) is checked after every build, the ages (seconds) once a day. Over the size limit, a tenth of it is
    freed, so that a store at its limit is not read through after each build. A failure to evict fails no build.
    """
    now = time.time()
    check_ages = max_age is not None and _is_due(layout, now)
    try:
        # The running sum may be too high, so count before anything is evicted.
        is_full = max_size is not None and size_log.total(layout) > max_size and size_log.measure(layout) > max_size
        if not check_ages and not is_full:
            return 0
        size = max_size * 9 // 10 if is_full and max_size is not None else None
        return len(gc.remove(layout, gc.over_limit(layout, now, size, max_age if check_ages else None)))
    except OSError:  # CacheDirError too
        return 0  # a store that has become read-only grows no further


def _is_due(layout: Layout, now: float) -> bool:
    """Returns whether a day has passed since the ages were last checked; if so, notes that they are checked now."""
    path = layout.path(SWEPT)
    try:
        if abs(now - os.stat(path).st_mtime) < AGE_CHECK_SECONDS:
            return False
    except OSError:
        pass  # never checked yet
    try:
        write_file(path, b"")  # a new file: what may lie there instead of it is not opened
    except OSError:
        return False
    return True
