"""Versions of packages: a whole number for the interface, and after a dot the count of rebuilds: `2`, `2.3`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

OPERATORS = ("==", "!=", ">=", "<=", ">", "<", "")
EXPECTED = "a version such as 2 or 2.3"
EXPECTED_RANGE = "a version or a range, such as 2, 2.3 or >=2.1,<3"
MAX_CONDITIONS = 16
UNBOUNDED = 10**9
"""More than any count of rebuilds."""


class _Numbers(NamedTuple):
    interface: int
    rebuild: int = 0


class Version(_Numbers):
    """A version. Versions are ordered by interface, then by rebuild: `2` and `2.0` are equal."""

    written = ""
    """As it was written; empty if it was not read from a text."""

    def __str__(self) -> str:
        """Returns the version as it was written."""
        return self.written or self.canonical

    @property
    def canonical(self) -> str:
        """The same text for equal versions: without the rebuild if that is 0."""
        return f"{self.interface}.{self.rebuild}" if self.rebuild else str(self.interface)


def parse(text: object, where: str = "the version") -> Version:
    """Returns the version of a text or a whole number. Raises KernelFormatError."""
    numbers = read(_text(text))
    if numbers is None:
        raise _error(where, text, EXPECTED)
    number = Version(numbers[0], numbers[1] or 0)
    number.written = _text(text)
    return number


def read(text: str) -> tuple[int, int | None] | None:
    """Returns the interface and the rebuild of a version's text, the latter None if it states none; None if invalid.

    Without a pattern: compiling one takes as long as choosing a variant.
    """
    interface, dot, rebuild = text.partition(".")
    if not _is_number(interface) or (dot and not _is_number(rebuild)):
        return None
    return int(interface), int(rebuild) if dot else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 9 and (text[0] != "0" or text == "0")


class Range:
    """A range of versions: all of `bounds` hold. Each is (lowest, highest, excluded or not)."""

    __slots__ = ("bounds", "text")

    def __init__(self, text: str, bounds: tuple[tuple[Version, Version, bool], ...] = ()) -> None:
        self.text, self.bounds = text, bounds

    def __contains__(self, version: Version) -> bool:
        return all((low <= version <= high) != excluded for low, high, excluded in self.bounds)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Range) and self.bounds == other.bounds

    def __hash__(self) -> int:
        return hash(self.bounds)

    def __repr__(self) -> str:
        return f"Range({self.text!r})"

    def __str__(self) -> str:
        """Returns the range as it was written; `any` for the one that holds every version."""
        return self.text or "any"


ANY = Range("")


def parse_range(text: object, where: str = "the version") -> Range:
    """Returns the range of a text such as `2`, `2.3`, `>=2.1,<3`; a number alone holds all its rebuilds.

    An interface in a condition stands for all its rebuilds: `>2` begins at 3, `<=2` ends before 3. None is every
    version. Raises KernelFormatError.
    """
    if text is None:
        return ANY
    whole = _text(text)
    parts = whole.split(",")
    if len(parts) > MAX_CONDITIONS:
        raise _error(where, text, EXPECTED_RANGE)
    return Range(whole.strip(), tuple(_bound(part.strip(), text, where) for part in parts))


def exactly(number: Version) -> Range:
    """Returns the range that holds this version alone."""
    return parse_range(f"=={number.interface}.{number.rebuild}")


def joined(ranges: Iterable[Range]) -> Range:
    """Returns the range of the versions that all of these hold."""
    parts = [part for part in dict.fromkeys(ranges) if part.bounds]
    if len(parts) < 2:
        return parts[0] if parts else ANY
    bounds = dict.fromkeys(bound for part in parts for bound in part.bounds)
    return Range(", ".join(part.text for part in parts), tuple(bounds))


def without(number: Version) -> Range:
    """Returns the range that holds every version but this one."""
    return parse_range(f"!={number.interface}.{number.rebuild}")


def _bound(part: str, text: object, where: str) -> tuple[Version, Version, bool]:
    operator = next(operator for operator in OPERATORS if part.startswith(operator))
    numbers = read(part[len(operator) :].lstrip())
    if numbers is None:
        raise _error(where, text, EXPECTED_RANGE)
    low = Version(numbers[0], numbers[1] or 0)
    high = low if numbers[1] is not None else Version(low.interface, UNBOUNDED)
    first, last = Version(0), Version(UNBOUNDED, UNBOUNDED)
    return {
        "": (low, high, False),
        "==": (low, high, False),
        "!=": (low, high, True),
        ">=": (low, last, False),
        "<=": (first, high, False),
        ">": (first, high, True),
        "<": (low, last, True),
    }[operator]


def _text(text: object) -> str:
    if isinstance(text, bool):
        return ""
    return str(text) if isinstance(text, (int, str)) else ""


def _error(where: str, text: object, expected: str) -> Exception:
    from opforge.errors import KernelFormatError  # not on the path of a load

    shown = ascii(text)
    shown = shown if len(shown) < 100 else f"{shown[:97]}..."
    quotes = ", in quotes" if isinstance(text, float) else ""  # 2.10 and 2.1 are two versions, and one number
    return KernelFormatError(where, f"{shown} cannot be used", f"{expected}{quotes}")
