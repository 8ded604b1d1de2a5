"""Schemas: the fields of stored and sent files, declared once, in the words of JSON Schema (2020-12).

    LOCKED = record({"name": text(r"[a-z]+", "a name"), "state": whole()}, optional={"source": TEXT})

A schema is a mapping of JSON Schema's own keywords, so that other programs can check the same: docs/reference/schemas
holds those of what travels. `parse` and `read` raise FormatError for everything that is wrong with bytes that others
wrote; inside `lines_named` it begins with the line, for files that people edit. Whoever uses the values afterwards
catches nothing: what is raised there is a mistake of ours. `Fields` reads an object of which some fields are not ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from opforge.foundation.files import MAX_RECORD_BYTES, read_file

from .keys import KEY_LENGTH, strict

if TYPE_CHECKING:
    from opforge.errors import OpforgeError

Schema = Mapping[str, Any]
MAX_SHOWN = 60
KINDS: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
EXPECTED = {"object": "an object", "array": "a list", "string": "a text", "integer": "a whole number"}


class FormatError(ValueError):
    """Bytes or a value that others wrote are not what their schema declares; the text says what is wrong, and where."""

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message)
        self.where = where
        """The place of the value, as the text names it: `keys[0].until`; empty for the whole."""


def text(pattern: str = "", expected: str = "a text", most: int = 0) -> Schema:
    """Returns the schema of a text, which must match `pattern` from its beginning to its end."""
    shape = {"pattern": f"^(?:{pattern})$", "description": expected} if pattern else {}
    return {"type": "string", **shape, **({"maxLength": most} if most else {})}


def whole(lowest: int = 0, highest: int = (1 << 62) - 1) -> Schema:
    """Returns the schema of a whole number."""
    return {"type": "integer", "minimum": lowest, "maximum": highest}


def number(above: float, highest: float, expected: str = "a number") -> Schema:
    """Returns the schema of a number."""
    return {"type": "number", "exclusiveMinimum": above, "maximum": highest, "description": expected}


def items(item: Schema, most: int = 0, least: int = 0) -> Schema:
    """Returns the schema of a list."""
    return {"type": "array", "items": item, **({"maxItems": most} if most else {}), "minItems": least}


def row(*parts: Schema) -> Schema:
    """Returns the schema of a list with these parts, in this order."""
    return {"type": "array", "prefixItems": list(parts), "minItems": len(parts), "maxItems": len(parts)}


def table(value: Schema, names: Schema | None = None, most: int = 0) -> Schema:
    """Returns the schema of an object with any names."""
    named = {"propertyNames": names} if names else {}
    return {"type": "object", "additionalProperties": value, **named, **({"maxProperties": most} if most else {})}


def record(fields: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None, is_open: bool = False) -> Schema:
    """Returns the schema of an object with these fields, and no other unless it `is_open`."""
    every = {**fields, **(optional or {})}
    return {"type": "object", "properties": every, "required": sorted(fields), "additionalProperties": is_open}


def version(number: int) -> Schema:
    """Returns the schema of the number of a format. It is looked at before all other fields."""
    return {"const": number}


def choice(*values: str | int) -> Schema:
    """Returns the schema of one of some values."""
    return {"enum": list(values)}


def maybe(schema: Schema) -> Schema:
    """Returns the schema of what may also be null."""
    return {"anyOf": [schema, NULL]}


TEXT = text()
TEXTS = items(TEXT)
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
NULL: Schema = {"type": "null"}
OBJECT: Schema = {"type": "object"}
LIST: Schema = {"type": "array"}
WHOLE = whole()
SHA256 = text("[0-9a-f]{64}", "64 hex digits")
KEY = text(f"[0-9a-f]{{{KEY_LENGTH}}}", f"{KEY_LENGTH} hex digits")


def parse(data: bytes, schema: Schema, most: int = MAX_RECORD_BYTES) -> Any:
    """Returns the value in a text of JSON that others wrote. Raises FormatError for anything but what is declared."""
    if len(data) > most:
        raise FormatError(f"it has {len(data)} bytes, and at most {most} are read")
    try:
        value = strict(data)
    except RecursionError as error:
        raise FormatError("it is nested too deeply") from error
    except ValueError as error:
        raise FormatError(f"it is not valid JSON ({error})") from error
    return checked(value, schema)


def read(path: str, schema: Schema) -> Any:
    """Returns the value in a JSON file. Raises OSError if there is none, FormatError if it is not as declared."""
    try:
        data = read_file(path, MAX_RECORD_BYTES)
    except ValueError as error:
        raise FormatError(str(error)) from error
    return parse(data, schema)


def checked(value: Any, schema: Schema) -> Any:
    """Returns a value as it is. Raises FormatError if it is not what a schema declares."""
    _check(value, schema, "")
    return value


def problem(value: Any, schema: Schema, where: str = "") -> str:
    """Returns how a value, which messages call `where`, differs from what a schema declares, or an empty text."""
    try:
        _check(value, schema, where)
    except FormatError as error:
        return str(error)
    return ""


def _check(value: Any, schema: Schema, where: str) -> None:
    if "const" in schema and (type(value) is not int or value != schema["const"]):
        raise _unread(value, schema["const"], where)
    if "enum" in schema and value not in schema["enum"]:
        raise _error(value, schema, where)
    if "anyOf" in schema:
        if value is not None or NULL not in schema["anyOf"]:
            _check(value, schema["anyOf"][0], where)
        return
    kind = schema.get("type")
    if kind is None:
        return
    if not isinstance(value, KINDS[kind]) or (isinstance(value, bool) and kind != "boolean"):
        raise _error(value, schema, where)
    if kind in ("integer", "number"):
        is_above = "exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"]
        if not (is_above and schema.get("minimum", value) <= value <= schema.get("maximum", value)):
            raise _error(value, schema, where)
    elif kind in PARTS:
        PARTS[kind](value, schema, where)


def _check_text(value: str, schema: Schema, where: str) -> None:
    pattern = schema.get("pattern")
    if len(value) > schema.get("maxLength", len(value)) or (pattern and not _compiled(pattern).fullmatch(value)):
        raise _error(value, schema, where)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _check_list(value: Sequence[Any], schema: Schema, where: str) -> None:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        raise _error(value, schema, where)
    parts = schema.get("prefixItems") or [schema.get("items", {})] * len(value)
    if all(type(part) is str and declared is TEXT for part, declared in zip(value, parts, strict=True)):
        return  # thousands of paths: without a name for each
    for at, (part, declared) in enumerate(zip(value, parts, strict=True)):
        _check(part, declared, f"{where}[{at}]")


def _check_object(value: Mapping[str, Any], schema: Schema, where: str) -> None:
    fields, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name, field in fields.items():
        if "const" in field and name in value:  # another version may have other fields
            _check(value[name], field, _join(where, name))
    if len(value) > schema.get("maxProperties", len(value)):
        raise _error(value, schema, where)
    for name in schema.get("required", ()):
        if name not in value:
            raise FormatError(f"{_join(where, name)!r} is missing", where)
    for name, part in value.items():
        place = _join(where, name)
        if "propertyNames" in schema:
            _check(name, schema["propertyNames"], f"{where} (a name in it)")
        if name in fields:
            _check(part, fields[name], place)
        elif others is False:
            raise FormatError(_unknown(place, name, fields), place)
        elif others is not True:
            _check(part, others, place)


PARTS: Mapping[str, Callable[[Any, Schema, str], None]] = {
    "string": _check_text,
    "array": _check_list,
    "object": _check_object,
}


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _unknown(place: str, name: str, fields: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name[:100], fields, n=1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return f"{ascii(place)[:100]} is not a field that is read{meant}"


def _unread(value: Any, number: int, where: str) -> FormatError:
    shown = f"{where!r} is {_shown(value)}, and this opforge reads {number}"
    return FormatError(f"{shown}: update opforge" if type(value) is int and value > number else shown, where)


def _error(value: Any, schema: Schema, where: str) -> FormatError:
    begin = f"{where[:200]!a} is {_shown(value)}" if where else f"it is {_shown(value)}"
    return FormatError(f"{begin}: expected {expected(schema)}", where)


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        kind, parts = ("an object", "fields") if isinstance(value, dict) else ("a list", "items")
        return f"{kind} of {len(value)} {parts if len(value) != 1 else parts[:-1]}"
    return ascii(value if not isinstance(value, str) else value[: 2 * MAX_SHOWN])[:MAX_SHOWN]


def expected(schema: Schema) -> str:
    """Returns a schema in words: for messages, and for the tables of formats.md."""
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return f"one of {', '.join(map(repr, schema['enum']))}"
    if "anyOf" in schema:
        return f"{expected(schema['anyOf'][0])}, or null"
    kind = schema["type"]
    words = schema.get("description") or EXPECTED.get(kind) or {"boolean": "true or false"}.get(kind, f"a {kind}")
    if "minimum" in schema and schema["maximum"] < (1 << 62) - 1:
        return f"{words} from {schema['minimum']} to {schema['maximum']}"
    if "maxLength" in schema:
        return f"{words} of at most {schema['maxLength']} characters"
    if "maxProperties" in schema:
        return f"an object of at most {schema['maxProperties']} fields"
    if "prefixItems" in schema:
        return f"a list of {len(schema['prefixItems'])}: {', '.join(map(expected, schema['prefixItems']))}"
    if "maxItems" in schema or schema.get("minItems"):
        return f"a list of {schema.get('minItems', 0)} to {schema.get('maxItems', 'any number of')} items"
    return words


@contextmanager
def lines_named(data: bytes) -> Iterator[None]:
    """Makes each FormatError about a text of JSON begin with its line: people edit the text."""
    try:
        yield
    except FormatError as error:
        raise FormatError(f"line {_line_of(data, error)}: {error}", error.where) from error


def _line_of(data: bytes, error: FormatError) -> int:
    """Returns the line of what an error is about; 1 for what is about the whole text."""
    cause = error.__cause__
    if isinstance(cause, json.JSONDecodeError):
        return cause.lineno
    if isinstance(cause, UnicodeDecodeError):
        return data.count(b"\n", 0, cause.start) + 1
    if isinstance(cause, RecursionError):
        return 1
    return lines_of(data.decode("utf-8", "replace")).get(error.where or ("" if cause is None else REFUSED), 1)


REFUSED = "(what is not JSON)"
_MARK = re.compile(r'\n|"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')


def lines_of(text: str) -> dict[str, int]:
    """Returns the line in which each value of a text of JSON begins, by its place: `keys[0].until`.

    A field's is that of its name. REFUSED is that of the first name that is in one object twice, or of the first name
    or value that `strict` refuses: NaN, 1e999, half of a surrogate pair.
    """
    lines, line, inside = dict[str, int](), 1, list[list[Any]]()  # the place, and the index or the name, of each
    for mark in _MARK.findall(text):
        if mark == "\n":
            line += 1
            continue
        if mark in "]}:":
            inside = inside[:-1] if mark != ":" else inside
            continue
        where, at = inside[-1] if inside else ("", "")
        if mark == ",":
            inside[-1][1] = at + 1 if isinstance(at, int) else None
        elif at is None:  # the name of a field
            inside[-1][1] = name = json.loads(mark)
            if _join(where, name) in lines or _is_refused(mark):
                lines.setdefault(REFUSED, line)
            lines.setdefault(_join(where, name), line)
        else:
            place = f"{where}[{at}]" if isinstance(at, int) else _join(where, at)
            lines.setdefault(place, line)
            if mark in "{[":
                inside.append([place, 0 if mark == "[" else None])
            elif _is_refused(mark):
                lines.setdefault(REFUSED, line)
    return lines


def _is_refused(mark: str) -> bool:
    """Returns whether a text, a number or a word of JSON is refused by itself."""
    try:
        strict(mark.encode())
    except ValueError:
        return True
    return False


class Fields:
    """Reads single fields of an object. A wrong one raises KernelFormatError with its name."""

    def __init__(self, values: Any, where: str, expected: str) -> None:
        self.where, self.expected = where, expected
        if wrong := problem(values, OBJECT):
            raise self.error(wrong)
        self.values: dict[str, Any] = values

    @classmethod
    def parse(cls, data: bytes, where: str, expected: str, most: int) -> Fields:
        """Returns the fields of the object in a text of JSON. Raises KernelFormatError."""
        try:
            return cls(parse(data, OBJECT, most), where, expected)
        except FormatError as error:
            from opforge.errors import KernelFormatError  # not on the path of a load

            raise KernelFormatError(where, str(error), expected) from error

    def error(self, wrong: str) -> OpforgeError:
        """Returns the error for a problem in this object."""
        from opforge.errors import KernelFormatError

        return KernelFormatError(self.where, wrong, self.expected)

    def get(self, name: str, schema: Schema, default: Any = ...) -> Any:
        """Returns a field's value, or the default if it is missing or null."""
        value = self.values.get(name)
        if value is None:
            if default is ...:
                raise self.error(f"{name!r} is missing")
            return default
        if wrong := problem(value, schema, name):
            raise self.error(wrong)
        return value

    def text(self, name: str, default: Any = ...) -> str:
        """Returns a text."""
        value: str = self.get(name, TEXT, default)
        return value

    def whole(self, name: str, default: Any = ...) -> int:
        """Returns a whole number that is not negative."""
        value: int = self.get(name, WHOLE, default)
        return value

    def flag(self, name: str, default: Any = ...) -> bool:
        """Returns true or false."""
        value: bool = self.get(name, FLAG, default)
        return value

    def texts(self, name: str, default: Any = ...) -> tuple[str, ...]:
        """Returns a list of texts."""
        return tuple(self.get(name, {**TEXTS, "description": "a list of texts"}, default))

    def table(self, name: str, default: Any = ...) -> dict[str, Any]:
        """Returns an object."""
        value: dict[str, Any] = self.get(name, OBJECT, default)
        return value

    def only(self, names: Iterable[str]) -> None:
        """Raises KernelFormatError if there is a field of another name."""
        for name in self.values:
            if name not in names:
                raise self.error(_unknown(name, name, names))
