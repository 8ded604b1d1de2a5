"""Which torch a library on the stable ABI needs, by the functions that it asks for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from opforge.builders.spec.installed_torch import torch_folder
from opforge.versions import version_of

SHIM = ("include", "torch", "csrc", "stable", "c", "shim.h")
PREFIXES = ("torch_", "aoti_torch_")
GUARD = re.compile(r"#\s*if TORCH_FEATURE_VERSION >= TORCH_VERSION_(\d+)_(\d+)_\d+")
FUNCTION = re.compile(r"\b(torch_\w+|aoti_torch_\w+)\s*\(")


def versions(folder: str) -> dict[str, str]:
    """Function -> the torch that brought it, as the header of the torch in `folder` tells; empty where it does not."""
    try:
        with open(os.path.join(folder, *SHIM), encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return {}
    found: dict[str, str] = {}
    since = ""
    for line in lines:
        guard = GUARD.match(line)
        if guard:
            since = f"{guard[1]}.{guard[2]}"
        elif line.startswith("#endif"):
            since = "" if "TORCH_FEATURE_VERSION" in line else since
        elif since:
            found |= dict.fromkeys(FUNCTION.findall(line), since)
    return found


def torch_floor(undefined: Iterable[str]) -> dict[str, Any]:
    """`used`: the functions of torch's C interface that a library asks for; `floor`: the torch that has all of them, as
    far as the torch here can tell, or empty; `by_version`: which of them are newer than the interface itself.
    """
    used = sorted(name for name in undefined if name.startswith(PREFIXES))
    folder = torch_folder()
    known = versions(folder) if folder else {}
    by_version: dict[str, list[str]] = {}
    for name in used:
        if name in known:
            by_version.setdefault(known[name], []).append(name)
    return {"used": used, "floor": max(by_version, key=version_of, default=""), "by_version": by_version}
