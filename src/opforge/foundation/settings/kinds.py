"""The kinds of values that settings have: as a variable's text, which options have too, and in a settings file."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Generic, TypeVar

    T = TypeVar("T")

    class Of(Generic[T]):
        """The base of a class that says which type its values have."""
else:
    T = None

    class Of:
        """The same for every type: a class of `typing.Generic` costs as much as two imports of modules."""

        __slots__ = ()

        def __class_getitem__(cls, _type):
            return cls


TRUE, FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"", "0", "false", "no", "off"})
SIZES = {"": 1, "B": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
SIZES |= {f"{unit}IB": SIZES[unit] for unit in "KMGT"}
SIZES |= {f"{unit}B": 1000**power for power, unit in enumerate("KMGT", start=1)}
AGES = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
SIZE_EXPECTED = "a number with B, KiB, MB or the like, such as 2GiB"
TIME_EXPECTED = "a number with s, min, h, d or w, such as 90s"
AGE_EXPECTED = "a number with s, min, h, d or w, such as 30d"


class Kind(Of[T]):
    """The kind of a setting's values."""

    __slots__ = ("empty", "expected", "in_file", "parse", "to_text")

    def __init__(
        self, parse: Callable[[str], T], expected: str, to_text: Callable[[Any], str], in_file: str, empty: str = ""
    ) -> None:
        """Makes a kind.

        Args:
            parse: Returns the value of a variable's text, which may be empty. Raises ValueError.
            expected: What a variable may hold, for an error's text.
            to_text: Returns a file's value as the variable's text. Raises ValueError, TypeError for another type.
            in_file: What a settings file may hold, for an error's text.
            empty: The text of the value that stands for nothing.
        """
        self.parse, self.expected, self.to_text, self.in_file, self.empty = parse, expected, to_text, in_file, empty


def folder(text: str) -> str:
    """Returns the absolute path that a text names; empty if it is."""
    # An absolute and normal path needs no change. This test takes a tenth of the time of os.path's functions.
    if not text or (text[0] == "/" and text[-1] != "/" and "//" not in text and "/." not in text):
        return text
    return os.path.abspath(os.path.expanduser(text))


def parse_size(text: str) -> int:
    """Returns bytes: 2GiB, 500MB (thousands), 1.5G (as GiB), 1048576. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if not match or match[2].upper() not in SIZES:
        raise ValueError(f"{text!r} is not a size: expected {SIZE_EXPECTED}")
    return int(_finite(text, float(match[1]) * SIZES[match[2].upper()], SIZE_EXPECTED))


def parse_age(text: str) -> float:
    """Returns seconds: 30d, 12h, 90min, 45s, 2w, 0. Raises ValueError, also without a unit: 30 would empty a cache."""
    seconds = parse_time(text, "an age", AGE_EXPECTED)
    if seconds and text.strip()[-1].isdigit():
        raise ValueError(f"{text!r} has no unit: expected {AGE_EXPECTED}")
    return seconds


def parse_time(text: str, what: str = "a length of time", expected: str = TIME_EXPECTED) -> float:
    """Returns seconds: 45s, 10min, 1.5h. Raises ValueError, which says that the text is not `what`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if not match or match[2] not in AGES:
        raise ValueError(f"{text!r} is not {what}: expected {expected}")
    return _finite(text, float(match[1]) * AGES[match[2]], expected)


def _finite(text: str, number: float, expected: str) -> float:
    if math.isinf(number):
        raise ValueError(f"{text!r} is too large: expected {expected}")
    return number


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError
        return word

    return parse


def is_true(text: str) -> bool:
    """Returns whether the text of a switch is true. Raises ValueError for anything but a switch's texts."""
    word = text.strip().lower()
    if word not in TRUE and word not in FALSE:
        raise ValueError
    return word in TRUE


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.replace(",", " ").split())
    if not all(name.isidentifier() for name in names):
        raise ValueError
    return names


def _builders(text: str) -> tuple[str, ...] | None:
    word = text.strip().lower()
    if word in TRUE or word in FALSE:
        return () if word in TRUE else None
    names = tuple(part.strip() for part in text.split(","))
    if not all(name.isidentifier() and name.endswith("Builder") for name in names):
        raise ValueError
    return names


def _extensions(text: str) -> str:
    """Returns the base of setup scripts: "torch", "torch-facade", or an empty text for torch's own command."""
    word = text.strip().lower()
    if word == "torch-facade":
        return word
    return "torch" if is_true(text) else ""


def _urls(text: str) -> tuple[str, ...]:
    """Returns the words. One after a folder's URL that begins no other URL or path is a part of that folder's name."""
    urls = list[str]()
    for word in text.split():
        if urls and urls[-1][:5] == "file:" and "://" not in word and not word.startswith(("/", "~", "./", "../")):
            urls[-1] += f"%20{word}"
        else:
            urls.append(word)
    return tuple(urls)


def _checkouts(text: str) -> dict[str, str]:
    folders = {}
    for part in filter(None, text.split(os.pathsep)):
        name, equals, path = part.partition("=")
        if not equals or not path:
            raise ValueError
        folders[name.strip()] = folder(path.strip())
    return folders


def _whole(text: str) -> int | None:
    word = text.strip()
    if not word:
        return None
    if not word.isdecimal() or int(word) < 1:
        raise ValueError
    return int(word)


def _seconds(text: str) -> float | None:
    word = text.strip()
    if not word:
        return None
    seconds = float(word)
    if not 0 <= seconds < float("inf"):
        raise ValueError
    return seconds


# What a settings file may hold.


def _of_text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise TypeError
    return value


def _of_flag(value: Any) -> str:
    if not isinstance(value, bool):
        raise TypeError
    return "1" if value else "0"


def _of_path(value: Any) -> str:
    path = os.path.expanduser(_of_text(value))
    if not os.path.isabs(path):
        raise ValueError
    return path


def _of_number(least: int) -> Callable[[Any], str]:
    def to_text(value: Any) -> str:
        if type(value) is not int or value < least:
            raise ValueError
        return str(value)

    return to_text


def _of_seconds(value: Any) -> str:
    if type(value) not in (int, float) or not 0 <= value < float("inf"):
        raise ValueError
    return str(value)


def _of_quantity(parse: Callable[[str], float]) -> Callable[[Any], str]:
    def to_text(value: Any) -> str:
        text = str(value) if type(value) is int else _of_text(value)
        parse(text)
        return text

    return to_text


def _of_list(part: Callable[[Any], str], separator: str) -> Callable[[Any], str]:
    def to_text(value: Any) -> str:
        if not isinstance(value, list):
            raise TypeError
        parts = [part(item) for item in value]
        if any(separator in item for item in parts):
            raise ValueError
        return separator.join(parts)

    return to_text


def _of_checkouts(value: Any) -> str:
    if not isinstance(value, dict) or any("=" in name or os.pathsep in name for name in value):
        raise TypeError
    return _of_list(_of_text, os.pathsep)([f"{name}={_of_path(path)}" for name, path in value.items()])


_PATH = "an absolute path, or one that begins with ~/"
_PATHS = "a list of absolute paths"
_SWITCH = "true or false"

NAME = Kind(str.strip, "a name", _of_text, 'a name, such as "cuda"')
TEXT = Kind(str.strip, "a text", _of_text, "a text")
COMMAND = Kind(str.strip, "a command", _of_text, "a command")
FLAG = Kind(is_true, "1 or 0", _of_flag, _SWITCH, "0")
LENIENT_FLAG = Kind(lambda text: text.strip().lower() not in FALSE, "1 or 0", _of_flag, _SWITCH, "0")
"""For what is read while an error is reported: any value but a false one is true."""
FOLDER = Kind(folder, "a path", _of_path, _PATH)
FOLDERS = Kind(
    lambda text: tuple(folder(part) for part in text.split(os.pathsep) if part),
    f"paths separated by {os.pathsep!r}",
    _of_list(_of_path, os.pathsep),
    _PATHS,
)
LOG = Kind(str, "a path, or -", lambda value: "-" if value == "-" else _of_path(value), f'{_PATH}, or "-"')
AGE = Kind(
    lambda text: parse_age(text) or None,
    AGE_EXPECTED,
    _of_quantity(parse_age),
    f"{AGE_EXPECTED}, as a text, or 0",
)
"""Seconds; None for 0, no limit."""
SIZE = Kind(
    lambda text: parse_size(text) or None,
    SIZE_EXPECTED,
    _of_quantity(parse_size),
    f"{SIZE_EXPECTED}, as a text, or 0",
)
"""Bytes; None for 0, no limit."""
SECONDS = Kind(_seconds, "a number of seconds, 0 or more", _of_seconds, "a number of seconds, 0 or more")
NUMBER = Kind(_whole, "a whole number, 1 or more", _of_number(1), "a whole number, 1 or more")
NODES = Kind(
    str.strip,
    "a comma list of NUMA node numbers, such as 0,1 or 0-3",
    _of_list(_of_number(0), ","),
    "a list of numbers",
)
VARIABLES = Kind(
    _names, "names of variables, separated by commas", _of_list(_of_text, ","), "a list of names of variables"
)
USERS = Kind(
    lambda text: tuple(part.strip() for part in text.split(",") if part.strip()),
    "users, separated by commas",
    _of_list(_of_text, ","),
    "a list of users",
)
WORDS = Kind(lambda text: tuple(text.split()), "words separated by spaces", _of_list(_of_text, " "), "a list of words")
URLS = Kind(_urls, "URLs separated by spaces", _of_list(_of_text, " "), "a list of URLs")
CHECKOUTS = Kind(
    _checkouts,
    f"ORG/NAME=FOLDER, several joined by {os.pathsep!r}",
    _of_checkouts,
    'a table of absolute paths by package, such as {"acme/relu" = "/src/relu"}',
)
BUILDERS = Kind(_builders, "1, 0, or builders such as CPUAdamBuilder,CPULionBuilder", _of_text, "a text")
EXTENSIONS = Kind(_extensions, "1, 0 or torch-facade", _of_text, "a text", "0")
PREBUILT = Kind(_one_of("prefer", "require", "ignore"), "prefer, require or ignore", _of_text, "a text", "prefer")
