"""The kinds whose names have the kind before them on the command line, as `tuned:OP`, with their modules."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from . import compiled, triton, tuned

MODULES: Mapping[str, Any] = {"tuned": tuned, "triton": triton, "compiled": compiled}
"""Each has `stored`, which returns what of some names is on this machine, `to_json` and `show`."""


def by_kind(names: Sequence[str], kinds: Collection[str] = tuple(MODULES)) -> tuple[dict[str, list[str]], list[str]]:
    """Returns the names of each of these kinds, without the kind, and the other names."""
    named: dict[str, list[str]] = {kind: [] for kind in kinds}
    others = []
    for name in names:
        kind, colon, rest = name.partition(":")
        if colon and kind in named:
            named[kind].append(rest)
        else:
            others.append(name)
    return named, others
