"""Keeps a store within its limits after each build. Looking costs a walk; evicting, a look at every manifest."""

from __future__ import annotations

import os
import time

from . import upkeep
from .layout import Layout

LOOK_AT_AGES_SECONDS = 24 * 3600.0
SWEPT = "swept"


def enforce(layout: Layout, max_size: int | None, max_age: float | None) -> int:
    """Evict what is beyond the limits, least recently used first; returns how many things went.

    Sizes (bytes) are looked at after every build, ages (seconds) once a day. Failing to evict fails no build.
    """
    now = time.time()
    aged = max_age is not None and _is_due(layout, now)
    if not aged and (max_size is None or _bytes(layout) <= max_size):
        return 0
    try:
        return len(upkeep.remove(layout, upkeep.surplus(layout, now, max_size, max_age if aged else None)))
    except OSError:  # CacheDirError too
        return 0  # a store that has become read-only grows no further


def _is_due(layout: Layout, now: float) -> bool:
    """Whether a day has passed since the ages were last looked at; if so, notes that they are now."""
    path = layout.path(SWEPT)
    try:
        if now - os.stat(path).st_mtime < LOOK_AT_AGES_SECONDS:
            return False
    except OSError:
        pass  # never yet
    try:
        with open(path, "wb"):
            os.utime(path)
    except OSError:
        return False
    return True


def _bytes(layout: Layout) -> int:
    """The bytes of entries and of what counts besides them, without reading any."""
    total = 0
    for area in ("entries", *upkeep.SPARE):
        for place, _folders, names in os.walk(layout.path(area)):
            for name in names:
                try:
                    total += os.lstat(os.path.join(place, name)).st_size
                except OSError:
                    continue  # it is being removed
    return total
