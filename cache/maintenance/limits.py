"""Keeps a store within its limits. Checking reads the running sum; evicting reads all entries.

The limits are enforced after each build, also after one that failed, and once an hour while the store has hits alone.
"""

from __future__ import annotations

import os

from opforge.cache.layout import SWEPT, Layout
from opforge.cache.ownership import has_tag
from opforge.cache.records import size_log
from opforge.errors import SettingError
from opforge.foundation import remembered_values_writer, settings
from opforge.foundation.file_owners import link_problem
from opforge.foundation.files import now_in, write_file

from . import counts

SWEEP_SECONDS = 24 * 3600.0
"""How long after a sweep for what is old the next one is made."""


def enforce(layout: Layout, max_size: int | None, max_age: float | None) -> int:
    """Evicts what is over the limits, the least recently used first; returns how many things were removed.

    The size (bytes) is checked each time. Once a day what is old is removed too: entries that were not used for
    `max_age` seconds, and what nothing needs. Over the size limit, a tenth of it is freed, so that a store at its limit
    is not read through after each build. A failure to evict raises nothing.
    """
    counts.fold()
    if not has_tag(layout.root):
        return 0
    now = now_in(layout.path())
    is_due = _is_due(layout, now)
    try:
        # The running sum may be too high, so count before anything is evicted.
        is_full = max_size is not None and size_log.total(layout) > max_size and size_log.measure(layout) > max_size
        if not is_due and not is_full:
            return 0
        if is_due:
            remembered_values_writer.remove_unused()
        size = max_size * 9 // 10 if is_full and max_size is not None else None
        from . import gc  # not for a store that is within its limits

        return len(gc.remove(layout, gc.over_limit(layout, now, size, max_age if is_due else None)))
    except OSError:  # CacheDirError too
        return 0  # a store that has become read-only grows no further


def enforce_settings(layout: Layout) -> int:
    """Enforces the limits that the environment sets, as `enforce`. One that cannot be read is reported by a build."""
    try:
        limits = settings.cache_max_size(), settings.cache_max_age()
    except SettingError:
        return 0
    # A look-up does not look at all folders of the store, and here something is removed.
    return enforce(layout, *limits) if link_problem(layout.path()) is None else 0


def _is_due(layout: Layout, now: float) -> bool:
    """Returns whether a day has passed since the last sweep; if so, notes that one is made now."""
    path = layout.path(SWEPT)
    try:
        if abs(now - os.stat(path).st_mtime) < SWEEP_SECONDS:
            return False
    except OSError:
        pass  # never swept yet
    try:
        write_file(path, b"")  # a new file: what may lie there instead of it is not opened
    except OSError:
        return False
    return True
