"""Decides which files in a folder are opforge's: a store has its tag, and only names that opforge makes are removed.

A folder that a user names may hold anything, also a `v2` with folders such as `plans` and `logs`. Nothing is
written, changed or removed there unless `has_tag`, and what is swept or collected passes `is_own` or `is_own_name`.
"""

from __future__ import annotations

import os
import re

from opforge.foundation.files import is_temp_name
from opforge.foundation.remembered_values import read_file

from .areas import AREAS, names_in
from .layout import TAG, TAG_NAME, VERSION, Layout

MAX_TAG_BYTES = 4096


def has_tag(root: str) -> bool:
    """Returns whether a folder is a store of opforge's: other programs have tags of the same name with another text."""
    try:
        return read_file(os.path.join(root, TAG_NAME), MAX_TAG_BYTES) == TAG.encode()
    except (OSError, ValueError):
        return False


def is_own_name(area: str, name: str) -> bool:
    """Returns whether opforge makes such a name in an area of a store."""
    form = names_in(area)
    return bool(form) and (is_temp_name(name) or bool(re.fullmatch(form, name)))


def is_own(layout: Layout, path: str) -> bool:
    """Returns whether a path in a store is one that opforge makes: only such a one may be removed."""
    root = layout.root.rstrip("/") + "/"
    parts = path.removeprefix(root).split("/") if path.startswith(root) else []
    if len(parts) == 1:
        return parts[0].startswith(f"{TAG_NAME}.") and is_temp_name(parts[0])
    if parts[:1] != [VERSION] or ".." in parts:
        return False
    if len(parts) == 2:
        return is_temp_name(parts[1])
    area, *names = parts[1:]
    if area not in AREAS:
        return False
    if len(names) == 1:
        return is_own_name(area, names[0])
    inner = AREAS[area].inner
    is_inner = len(names) == 2 and bool(inner and re.fullmatch(inner, names[1]))
    return is_own_name(area, names[0]) and (is_inner or is_temp_name(names[-1]))
