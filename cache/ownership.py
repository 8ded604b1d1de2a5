"""What in a folder is opforge's: a store is what has its tag, and only names that opforge makes are ever removed.

A folder that a user names may hold anything, also a `v2` with folders such as `plans` and `logs`. Nothing is
written, changed or removed there unless `has_tag`, and what is swept or collected passes `is_own` or `is_own_name`.
"""

from __future__ import annotations

import os
import re

from opforge.memory import read_file

from .filesystem.files import is_temp_name
from .layout import FETCHED, TAG, TAG_NAME, VERSION, Layout

_KEY = "[0-9a-f]{32}"
_ENTRY = f"{_KEY}-[0-9a-f]{{8}}"
_BUNDLE = rf"{_KEY}\.[0-9a-f]{{16}}"
FORMS = {
    "descriptions": _KEY,
    "entries": _ENTRY,
    "failures": rf"{_KEY}\.json",
    FETCHED: _KEY,
    "graphs": _BUNDLE,
    "jit": _BUNDLE,
    "locks": rf"(?:{_KEY}|graphs-{_KEY}(?:-write)?|jit-{_KEY})(?:\.owner)?",
    "logs": rf"{_KEY}\.log",
    "objects": _KEY,
    "peaks": _KEY,
    "pins": r"[\w.-]{1,200}",
    "plans": _KEY,
    "quarantine": r"[^/]+\.[0-9]+\.[0-9a-f]{8}",  # the name of anything that `staging.set_aside` moves
    "sources": _KEY,
    "staging": r"[\w-]{1,12}\.[^/]+\.[0-9]+-(?:[0-9]+|running)?\.[0-9a-f]{8}",
    "toolchains": rf"(?:{_KEY}|packages)\.json",
    "tuned": _KEY,
}
"""The names that opforge makes in each folder of a store, as regular expressions."""
INNER_FORMS = {
    "descriptions": _ENTRY,
    FETCHED: _ENTRY,
    "objects": r"[0-9a-f]{64}\.(?:o|json)",
    "plans": _ENTRY,
    "tuned": r"[^/]+\.(?:json|fetched)",
}
"""The names of single files in the folders of FORMS that are removed one by one."""
MAX_TAG_BYTES = 4096


def has_tag(root: str) -> bool:
    """Returns whether a folder is a store of opforge's: other programs have tags of the same name with another text."""
    try:
        return read_file(os.path.join(root, TAG_NAME), MAX_TAG_BYTES) == TAG.encode()
    except (OSError, ValueError):
        return False


def is_own_name(area: str, name: str) -> bool:
    """Returns whether opforge makes such a name in an area of a store."""
    form = FORMS.get(area)
    if form is None:
        return False
    return bool(re.fullmatch(form, name)) or is_temp_name(name)


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
    if area not in FORMS:
        return False
    if len(names) == 1:
        return is_own_name(area, names[0])
    inner = INNER_FORMS.get(area)
    is_inner = len(names) == 2 and inner is not None and bool(re.fullmatch(inner, names[1]))
    return is_own_name(area, names[0]) and (is_inner or is_temp_name(names[-1]))
