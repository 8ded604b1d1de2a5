"""Places in sources, as compilers write them into libraries."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any


def path(place: str, roots: Iterable[Any]) -> str:
    """Returns FILE:LINE with a root's folder in place of its name: compiled paths begin with names of roots."""
    name, slash, rest = place.partition("/")
    folder = next((folder for root, folder, _ in roots if root == name), None)
    return os.path.join(folder, rest) if slash and folder else place
