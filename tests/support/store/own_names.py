"""A name that opforge makes in each area of a store. A sweep takes no other ones."""

from __future__ import annotations

import re

from opforge.cache.areas import AREAS

KEY, ENTRY = "0" * 32, "0" * 32 + "-" + "0" * 8
_EXAMPLES = {
    "locks": KEY,
    "quarantine": f"{ENTRY}.1.{'0' * 8}",
    "staging": f"plan.another-host.1-1.{'0' * 8}",
    "toolchains": f"{KEY}.json",
}


def _of(pattern: str) -> str:
    """Returns a name of a pattern that has nothing but hex digits, dots and letters."""
    return re.sub(r"\[0-9a-f\]\{(\d+)\}", lambda match: "0" * int(match[1]), pattern).replace("\\", "")


EXAMPLES = {name: _EXAMPLES.get(name) or _of(area.names) for name, area in AREAS.items()}
