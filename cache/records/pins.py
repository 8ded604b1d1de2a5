"""Entries that are kept for a reason: a root is a named list of entries, which no limit evicts.

    v2/pins/NAME    JSON: {"entries": [entry, ...], "owner": path}

`opforge cache pin` makes a root for each entry, named as the entry. Whatever else needs entries, such as an installed
package or a lock file, makes one with its own path as the owner. Such a root ends with its owner: once that has been
missing for 30 days (a disk may not be mounted), the root is removed.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from opforge.cache import schema
from opforge.cache.layout import Layout
from opforge.cache.schema import FormatError
from opforge.foundation.files import folder_names, is_temp_name, make_folder, renew, write_file

from .schemas import ROOT

AREA = "pins"
MAX_MISSING_SECONDS = 30 * 24 * 3600.0
"""How long a root stays after its owner was last seen. Its time says when that was."""
RENEW_SECONDS = 3600.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
log = logging.getLogger("opforge.cache")


class Root(NamedTuple):
    """A named list of entries that are kept."""

    name: str
    entries: frozenset[str]
    """The names of the entries' folders. They need not exist."""
    owner: str = ""
    """The path of the file or folder that needs them; empty if the user does."""

    @property
    def is_orphan(self) -> bool:
        """Whether its owner does not exist now."""
        return bool(self.owner) and not os.path.lexists(self.owner)


def set_root(layout: Layout, name: str, entries: Collection[str], owner: str = "") -> None:
    """Keeps these entries, whatever the limits, in place of those that the root named before.

    Args:
        layout: The store.
        name: The root's name: letters, digits, dots, underscores and hyphens.
        entries: The names of the entries' folders.
        owner: The absolute path of the file or folder that needs them; empty if the user does.

    Raises:
        ValueError: The name or the owner cannot be used.
        OSError: The store cannot be written.
    """
    if not _NAME.fullmatch(name) or is_temp_name(name):
        raise ValueError(f"{name!r} cannot name a root: expected at most 200 letters, digits, '.', '_' and '-'")
    if owner and not os.path.isabs(owner):
        raise ValueError(f"{owner!r} cannot own a root: expected an absolute path")
    make_folder(layout.path(AREA))
    content = json.dumps({"entries": sorted(entries), "owner": owner})
    write_file(layout.path(AREA, name), content.encode())


def remove_root(layout: Layout, name: str) -> None:
    """Makes the entries of a root subject to the limits again, unless another root names them."""
    with suppress(FileNotFoundError):
        os.unlink(layout.path(AREA, name))


def roots(layout: Layout) -> list[Root]:
    """Returns the roots of a store, by name. One that cannot be read is left out, with a warning."""
    readable = []
    for name in folder_names(layout.path(AREA)):
        if is_temp_name(name):
            continue
        try:
            data = schema.read(layout.path(AREA, name), ROOT)
            readable.append(Root(name, frozenset(data["entries"]), data["owner"]))
        except FileNotFoundError:
            continue  # another process has just removed it
        except (OSError, FormatError):
            log.warning(
                "%s cannot be read: the entries that it keeps are evicted as others are. Pin them again.",
                layout.path(AREA, name),
            )
    return readable


def pinned(layout: Layout) -> frozenset[str]:
    """Returns the names of the entries that a root keeps."""
    return frozenset[str]().union(*(root.entries for root in roots(layout)))


def kept_entries(layout: Layout) -> int:
    """Returns how many pinned entries the store holds. A pin may outlive its entry, which was damaged."""
    return sum(os.path.isdir(layout.entry(key)) for key in pinned(layout))


def pin(layout: Layout, key: str) -> None:
    """Keeps an entry, whatever the limits: makes the root of its name."""
    set_root(layout, key, (key,))


def unpin(layout: Layout, key: str) -> None:
    """Undoes `pin`. The entry is kept if another root names it."""
    remove_root(layout, key)


def renew_roots(layout: Layout) -> None:
    """Notes that the owners of the roots exist."""
    for root in roots(layout):
        if root.owner and not root.is_orphan:
            renew(layout.path(AREA, root.name), RENEW_SECONDS)
