"""What this user's keys have signed last in each remote: the store could hand an older list back to be signed again.

STATE/revoked/KEY-REMOTE.json     the newest list of revoked offers that was signed or seen here
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from opforge import settings
from opforge.cache.filesystem.files import UNREADABLE, make_folder, read_json, write_file
from opforge.cache.keys import key_of

FOLDER = "revoked"


class Known(NamedTuple):
    """The newest list of a key in a remote that this user knows."""

    date: float = 0.0
    """When it was made; seconds since the epoch."""
    entries: frozenset[str] = frozenset()


def _path(key: str, url: str) -> str:
    return os.path.join(settings.state_dir(), FOLDER, f"{key}-{key_of([url])[:16]}.json")


def newest(key: str, url: str) -> Known:
    """Returns what is known of a key's list in a remote; nothing if that cannot be read."""
    try:
        value: Any = read_json(_path(key, url))
        return Known(float(value["date"]), frozenset(map(str, value["revoked"])))
    except UNREADABLE:
        return Known()


def note(key: str, url: str, date: float, entries: frozenset[str]) -> None:
    """Keeps a list that was signed or seen, unless a newer one is known. A folder that is read-only keeps nothing."""
    before = newest(key, url)
    if before == Known(date, entries) or before.date > date:
        return
    value = {"remote": url, "key": key, "date": date, "revoked": sorted(entries)}
    try:
        make_folder(os.path.dirname(_path(key, url)))
        write_file(_path(key, url), json.dumps(value, indent=1).encode())
    except OSError:
        return  # in CI, where the key is a variable and nothing is kept between two jobs
