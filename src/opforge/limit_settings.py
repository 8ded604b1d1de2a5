"""The settings that are limits: sizes, ages, seconds, processes. A hit needs none of them."""

from __future__ import annotations

from collections.abc import Callable

from opforge import settings
from opforge.errors import SettingError

from .units import AGE_EXPECTED, SIZE_EXPECTED, parse_age, parse_size


def lock_timeout() -> float | None:
    """Returns how many seconds to wait for another process's build; None to wait as long as it lives."""
    value = settings.variable("OPFORGE_LOCK_TIMEOUT").strip()
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise SettingError("OPFORGE_LOCK_TIMEOUT", value, "a number of seconds, 0 or more")
    return seconds


def cache_max_size() -> int | None:
    """Returns the bytes that entries and objects may take: OPFORGE_CACHE_MAX_SIZE, by default 10 GiB.

    None if it is 0: there is no limit.
    """
    return int(_quantity("OPFORGE_CACHE_MAX_SIZE", "10GiB", parse_size, SIZE_EXPECTED)) or None


def cache_max_age() -> float | None:
    """Returns the seconds after which an unused entry is evicted: OPFORGE_CACHE_MAX_AGE, by default 180 days.

    None if it is 0: there is no limit.
    """
    return _quantity("OPFORGE_CACHE_MAX_AGE", "180d", parse_age, AGE_EXPECTED) or None


def _quantity(name: str, default: str, parse: Callable[[str], float], expected: str) -> float:
    value = settings.variable(name).strip() or default
    try:
        return parse(value)
    except ValueError as error:
        raise SettingError(name, value, expected) from error


def jobs() -> int | None:
    """Returns how many compilers may run at once, by OPFORGE_JOBS or torch's MAX_JOBS; None if neither is set."""
    value, name = settings.first("OPFORGE_JOBS", "MAX_JOBS")
    if not value:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise SettingError(name, value, "a whole number, 1 or more")
    return int(value)
