"""Lists of hardware threads or NUMA nodes as text, in the kernel's format: `0-3,8`."""

from __future__ import annotations

from collections.abc import Collection

from opforge.accelerator.host.files import parse_list
from opforge.errors import SettingError


def parse_core_list(text: str) -> tuple[int, ...]:
    """Returns the numbers of --bind-core-list, such as `0-51,56-107`. Raises SettingError."""
    numbers: tuple[int, ...] = ()
    parts = text.replace(" ", "").split(",")
    if all(_is_range(part.split("-")) for part in parts):
        numbers = parse_list(",".join(parts))
    if not numbers:
        raise SettingError("--bind-core-list", text, "numbers of cores and ranges of them, such as 0-51,56-107")
    return numbers


def _is_range(ends: list[str]) -> bool:
    # At most six digits: `0-99999999999` would otherwise be expanded in memory.
    small = all(end.isascii() and end.isdecimal() and len(end) <= 6 for end in ends)
    return small and 1 <= len(ends) <= 2 and int(ends[0]) <= int(ends[-1])


def format_list(numbers: Collection[int]) -> str:
    """Returns the numbers as the kernel lists them: `0-3,8`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
