"""Version numbers as programs and libraries state them."""

from __future__ import annotations

import functools


@functools.lru_cache(256)
def version_of(text: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version, such as (2, 13, 0) for 2.13.0+cpu; empty if there are none.

    Without a pattern: compiling one takes as long as choosing an entry.
    """
    numbers: list[int] = []
    for part in text.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)
