"""JSON that people edit: each value knows its line, and each field is declared. Anything else is an error.

A field that is not known must not be passed over: one that is misspelt would be a limit that does not hold.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

REQUIRED: Any = object()
"""The default of a field that must be there."""
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


class LineError(ValueError):
    """Something in a text is wrong; the message begins with its line."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")


class Node(NamedTuple):
    """A value with the line that it begins in. What it holds, if it is a list or an object, are nodes too."""

    value: Any
    line: int

    def error(self, problem: str) -> LineError:
        """Returns the error for a problem of this value."""
        return LineError(self.line, problem)

    @property
    def shown(self) -> str:
        """The value as messages show it."""
        if isinstance(self.value, (dict, list)):
            return "an object" if isinstance(self.value, dict) else "a list"
        return json.dumps(self.value)[:100]


class Field(NamedTuple):
    """A field that an object may have."""

    expected: str
    parse: Callable[[Node], Any]
    """Returns the field's value. Raises ValueError or TypeError for one that is not as expected."""
    default: Any = REQUIRED


def read(data: bytes) -> Node:
    """Returns the value in a text of JSON. Raises LineError."""
    try:
        text = data.decode("utf-8")
        json.loads(text)  # its words are good; what follows need not look for mistakes
    except UnicodeDecodeError as error:
        raise LineError(data.count(b"\n", 0, error.start) + 1, "it is not valid UTF-8") from error
    except json.JSONDecodeError as error:
        raise LineError(error.lineno, f"it is not valid JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:
        problem = "it is nested too deeply" if isinstance(error, RecursionError) else f"it is not valid JSON ({error})"
        raise LineError(1, problem) from error
    try:
        return _Reader(text).value()
    except RecursionError as error:
        raise LineError(1, "it is nested too deeply") from error


class _Reader:
    """Reads a text that is JSON, and counts lines."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._line = text, 0, 1

    def _next(self) -> str:
        """Returns the next character that is no space."""
        space = _SPACE.match(self._text, self._at)
        assert space  # it matches nothing, too
        self._line += space[0].count("\n")
        self._at = space.end()
        return self._text[self._at]

    def value(self) -> Node:
        begin, line = self._next(), self._line
        if begin not in "{[":
            value, self._at = _DECODER.raw_decode(self._text, self._at)
            if isinstance(value, float) and not math.isfinite(value):
                raise LineError(line, f"{value} is not a JSON value")
            return Node(value, line)
        self._at += 1
        return Node(self._object() if begin == "{" else self._list(), line)

    def _object(self) -> dict[str, Node]:
        fields: dict[str, Node] = {}
        while self._next() != "}":
            if self._text[self._at] == ",":
                self._at += 1
                continue
            name = self.value()
            self._next()
            self._at += 1  # the colon
            if name.value in fields:
                raise name.error(f"{name.shown} is in one object twice")
            fields[name.value] = self.value()._replace(line=name.line)
        self._at += 1
        return fields

    def _list(self) -> list[Node]:
        items: list[Node] = []
        while self._next() != "]":
            if self._text[self._at] == ",":
                self._at += 1
                continue
            items.append(self.value())
        self._at += 1
        return items


def fields_of(node: Node, what: str, schema: Mapping[str, Field]) -> dict[str, Any]:
    """Returns the values of an object's fields; all that are declared are there. Raises LineError."""
    if not isinstance(node.value, dict):
        raise node.error(f"{what} is {node.shown}: expected an object")
    for name, field in node.value.items():
        if name not in schema:
            near = get_close_matches(name, schema, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(schema)}"
            raise field.error(f"{ascii(name)[:100]} is not a field of {what}: {advice}")
    values = {}
    for name, declared in schema.items():
        field = node.value.get(name)
        if field is None:
            if declared.default is REQUIRED:
                raise node.error(f"{what} has no {name!r}: expected {declared.expected}")
            values[name] = declared.default
            continue
        try:
            values[name] = declared.parse(field)
        except LineError:
            raise
        except (ValueError, TypeError, OverflowError) as error:
            detail = f" ({error})" if str(error) else ""
            raise field.error(f"{name!r} is {field.shown}{detail}: expected {declared.expected}") from error
    return values


def text(node: Node) -> str:
    """Returns a text. Raises TypeError."""
    if not isinstance(node.value, str):
        raise TypeError
    return node.value


def flag(node: Node) -> bool:
    """Returns true or false. Raises TypeError."""
    if not isinstance(node.value, bool):
        raise TypeError
    return node.value


def number(node: Node) -> float:
    """Returns a number. Raises TypeError."""
    if isinstance(node.value, bool) or not isinstance(node.value, (int, float)):
        raise TypeError
    return node.value


def items(node: Node) -> list[Node]:
    """Returns the items of a list. Raises TypeError."""
    if not isinstance(node.value, list):
        raise TypeError
    return node.value
