"""Which torch a library on the stable ABI needs, by the functions that it calls."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from opforge.builders.declaration.machine import torch_folder
from opforge.foundation.versions import version_of

SHIM = ("include", "torch", "csrc", "stable", "c", "shim.h")
PREFIXES = ("torch_", "aoti_torch_")
GUARD = re.compile(r"#\s*if TORCH_FEATURE_VERSION >= TORCH_VERSION_(\d+)_(\d+)_\d+")
FUNCTION = re.compile(r"\b(torch_\w+|aoti_torch_\w+)\s*\(")


@cache
def versions(folder: str) -> dict[str, str]:
    """Returns the functions that were added after the interface's first version, each with torch's version.

    They are read from the header of the torch in `folder`; empty if it has none.
    """
    try:
        with open(os.path.join(folder, *SHIM), encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return {}
    added: dict[str, str] = {}
    since = ""
    for line in lines:
        if guard := GUARD.match(line):
            since = f"{guard[1]}.{guard[2]}"
        elif line.startswith("#endif"):
            since = "" if "TORCH_FEATURE_VERSION" in line else since
        elif since:
            added |= dict.fromkeys(FUNCTION.findall(line), since)
    return added


def torch_floor(names: Iterable[str]) -> dict[str, Any]:
    """Returns which torch a library that does not define these names needs, JSON-able.

    `used`: the functions of torch's C interface among them; `by_version`: those that were added after the interface's
    first version, by torch's version; `floor`: the newest of these versions, empty if there is none. Functions that the
    installed torch does not know are in `used` alone.
    """
    used = sorted(name for name in names if name.startswith(PREFIXES))
    folder = torch_folder()
    added = versions(folder) if folder else {}
    by_version: dict[str, list[str]] = {}
    for name in used:
        if name in added:
            by_version.setdefault(added[name], []).append(name)
    return {"used": used, "floor": max(by_version, key=version_of, default=""), "by_version": by_version}
