"""Versions of programs and libraries, compared by their numbers."""

from __future__ import annotations

import re


def version_of(text: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version: (2, 13, 0) for 2.13.0+cpu, and () if there is none."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
