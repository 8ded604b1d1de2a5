"""JSON of packages: strict and bounded when it is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from opforge.cache.keys import strict
from opforge.errors import OpforgeError

DIGITS = frozenset("0123456789abcdef")


def parse_object(data: bytes, where: str, max_bytes: int, expected: str) -> dict[str, Any]:
    """Returns the object in a JSON text. Raises KernelFormatError, also for a name that is in an object twice."""
    if len(data) > max_bytes:
        raise _error(where, f"it has {len(data)} bytes, more than {max_bytes}", expected)
    try:
        value = strict(data)
    except (ValueError, RecursionError) as error:
        problem = "it is nested too deeply" if isinstance(error, RecursionError) else f"it is not valid JSON ({error})"
        raise _error(where, problem, expected) from error
    if not isinstance(value, dict):
        raise _error(where, f"it is {ascii(value)[:100]}: expected an object", expected)
    return value


def readable(value: Any) -> bytes:
    """Returns a text of a value for files that people read too: sorted names, indented."""
    return (json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def is_sha256(value: object) -> bool:
    """Returns whether a value is a SHA-256 in lower-case hex digits."""
    return isinstance(value, str) and len(value) == 64 and DIGITS.issuperset(value)


class Fields:
    """Reads the fields of an object, each with its type. A wrong one raises KernelFormatError with its name."""

    def __init__(self, values: Any, where: str, expected: str) -> None:
        self.where, self.expected = where, expected
        if not isinstance(values, dict):
            raise self.error(f"it is {ascii(values)[:100]}: expected an object")
        self.values: dict[str, Any] = values

    def error(self, problem: str) -> OpforgeError:
        """Returns the error for a problem in this object."""
        return _error(self.where, problem, self.expected)

    def get(self, name: str, kind: type | tuple[type, ...], what: str, default: Any = ...) -> Any:
        """Returns a field's value, or the default if it is missing or null. A bool is no number."""
        value = self.values.get(name)
        if value is None:
            if default is ...:
                raise self.error(f"{name!r} is missing")
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.error(f"{name!r} is {ascii(value)[:100]}: expected {what}")
        return value

    def text(self, name: str, default: Any = ...) -> str:
        """Returns a text."""
        value: str = self.get(name, str, "a text", default)
        return value

    def whole(self, name: str, default: Any = ...) -> int:
        """Returns a whole number that is not negative."""
        value: int = self.get(name, int, "a whole number", default)
        if value is not default and not 0 <= value < 1 << 62:
            raise self.error(f"{name!r} is {ascii(value)[:40]}: expected a whole number from 0 to 2^62 - 1")
        return value

    def flag(self, name: str, default: Any = ...) -> bool:
        """Returns true or false."""
        value: bool = self.get(name, bool, "true or false", default)
        return value

    def texts(self, name: str, default: Any = ...) -> tuple[str, ...]:
        """Returns a list of texts."""
        value = self.get(name, list, "a list of texts", default)
        if not all(isinstance(part, str) for part in value):
            raise self.error(f"{name!r} is {ascii(value)[:100]}: expected a list of texts")
        return tuple(value)

    def table(self, name: str, default: Any = ...) -> dict[str, Any]:
        """Returns an object."""
        value: dict[str, Any] = self.get(name, dict, "an object", default)
        return value

    def only(self, names: tuple[str, ...]) -> None:
        """Raises KernelFormatError if there is a field of another name."""
        for name in self.values:
            if name not in names:
                from difflib import get_close_matches

                near = get_close_matches(name, names, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise self.error(f"{ascii(name)[:100]} is not a field that is read{hint}")

    def parsed(self, name: str, parse: Callable[[Any], Any]) -> Any:
        """Returns what `parse` makes of a field. Its ValueError becomes a KernelFormatError."""
        try:
            return parse(self.values.get(name))
        except (ValueError, TypeError, KeyError) as error:
            if isinstance(error, OpforgeError):
                raise
            raise self.error(f"{name!r}: {error}") from error


def _error(where: str, problem: str, expected: str) -> OpforgeError:
    from opforge.errors import KernelFormatError  # not on the path of a load

    return KernelFormatError(where, problem, expected)
