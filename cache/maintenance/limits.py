"""Keeps a store within its limits after each build. Looking reads a running sum; evicting goes through all entries."""

from __future__ import annotations

import os
import time

from opforge.cache.layout import Layout
from opforge.cache.records import size_log

from . import gc

LOOK_AT_AGES_SECONDS = 24 * 3600.0
SWEPT = "swept"


def enforce(layout: Layout, max_size: int | None, max_age: float | None) -> int:
    """Evict what is beyond the limits, least recently used first; returns how many things went.

    Sizes (bytes) are looked at after every build, ages (seconds) once a day. Where the size limit is passed, a tenth
    of it is made free, so that a store at its limit is not gone through after each build. Failing to evict fails no
    build.
    """
    now = time.time()
    aged = max_age is not None and _is_due(layout, now)
    try:
        # The running sum may be too high; what is evicted for is counted.
        full = max_size is not None and size_log.total(layout) > max_size and size_log.measure(layout) > max_size
        if not aged and not full:
            return 0
        room = max_size * 9 // 10 if full and max_size is not None else None
        return len(gc.remove(layout, gc.over_limit(layout, now, room, max_age if aged else None)))
    except OSError:  # CacheDirError too
        return 0  # a store that has become read-only grows no further


def _is_due(layout: Layout, now: float) -> bool:
    """Whether a day has passed since the ages were last looked at; if so, notes that they are now."""
    path = layout.path(SWEPT)
    try:
        if abs(now - os.stat(path).st_mtime) < LOOK_AT_AGES_SECONDS:
            return False
    except OSError:
        pass  # never yet
    try:
        with open(path, "wb"):
            os.utime(path)
    except OSError:
        return False
    return True
