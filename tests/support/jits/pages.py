"""Entries of a JIT that there is not, for what is the same for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opforge.jits.entries import Entries
from opforge.jits.page import PageTopic

ADAPTER = "toy"
CARRIES = r"[\w-]+(?:\.[a-z]+)?"


def entries(label: str = "copy", holds: str = "gpu", features: tuple[str, ...] = (), **fingerprint: str) -> Entries:
    """Returns the entries of this machine, after asking the remotes."""
    return Entries(PageTopic(ADAPTER, label, {"toy": "1", **fingerprint}), holds, features, CARRIES)


def keep(files: Mapping[str, Mapping[str, bytes]], label: str = "copy", **options: Any) -> Entries:
    """Keeps entries in a page, as a scope does that has made them; returns it after its end."""
    made = entries(label, **options)
    for key, content in files.items():
        made.put(key, key, content)
    made.close()
    return made
