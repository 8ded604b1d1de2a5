"""Version numbers as programs and libraries state them."""

from __future__ import annotations

import re


def version_of(text: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version, such as (2, 13, 0) for 2.13.0+cpu; empty if there are none."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
