"""Names of packages, `org/name`: safe as paths on every system, and never ambiguous."""

from __future__ import annotations

from opforge.errors import OpforgeError

LETTERS, DIGITS = frozenset("abcdefghijklmnopqrstuvwxyz"), frozenset("0123456789")
INNER = "-_."
"""Separators inside a part of a name: the hub's repositories have all three."""
ALLOWED = LETTERS | DIGITS | {*INNER}
MAX_CHARACTERS = 64
RESERVED = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{digit}" for port in ("com", "lpt") for digit in range(10))}
)
"""Names that Windows has for devices: a checkout or a store on such a file system could not hold them."""
EXPECTED = (
    "ORG/NAME in lower-case ASCII letters, digits, '-', '_' and '.', such as acme/fast-relu;"
    " NAME begins with a letter and has two to 64 characters"
)
EXPECTED_SHORT = "a name in lower-case ASCII letters, digits and '-', such as fast-relu"


def check(name: str, where: str = "the kernel's name") -> str:
    """Returns the name. Raises KernelFormatError for one that is not `org/name`."""
    if problem := _problem(name):
        raise _error(where, f"{_shown(name)} {problem}")
    return name


def is_name(text: str) -> bool:
    """Returns whether a text is `org/name`."""
    return not _problem(text)


def _problem(name: object) -> str:
    if not isinstance(name, str):
        return "is not a text"
    if not name.isascii():
        odd = next(char for char in name if not char.isascii())
        return f"holds {odd!a}, which only looks like an ASCII letter"
    organization, slash, last = name.partition("/")
    if not slash or "/" in last:
        return "is not two parts with one '/'"
    if not is_word(organization) or not is_word(last) or last[0] not in LETTERS or len(last) < 2:
        return "is not a name that can be used"
    reserved = next((part for part in (organization.partition(".")[0], last.partition(".")[0]) if part in RESERVED), "")
    return f"holds {reserved!r}, which names a device on Windows" if reserved else ""


def is_word(text: str) -> bool:
    """Returns whether a text has letters and digits, and single '-', '_' and '.' inside; '--' is allowed, too."""
    is_bounded = 0 < len(text) <= MAX_CHARACTERS and ALLOWED.issuperset(text)
    return is_bounded and text[0] not in INNER and text[-1] not in INNER and ".." not in text


def _shown(name: object) -> str:
    text = ascii(name)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _error(where: str, problem: str, expected: str = EXPECTED) -> OpforgeError:
    from opforge.errors import KernelFormatError  # not on the path of a load

    return KernelFormatError(where, problem, expected)


def check_short(name: str, where: str) -> str:
    """Returns a package's name without its organization, as metadata has it. Raises KernelFormatError.

    It becomes the name of a Python module: of what repositories have, '-' alone may be inside.
    """
    is_name = isinstance(name, str) and is_word(name) and name[0] in LETTERS and len(name) > 1
    is_name = is_name and not {"_", "."} & set(name)
    if not is_name or name in RESERVED:
        raise _error(where, f"{_shown(name)} is not a name that can be used", EXPECTED_SHORT)
    return name


def of_repository(text: str, where: str) -> str:
    """Returns the name of a package for a repository of the hub, which tells no capital letter from a small one.

    Raises KernelFormatError.
    """
    return check(text.lower() if text.isascii() else text, where)


def python_name(name: str) -> str:
    """Returns the identifier for `org/name`, or for the name alone: `fast_relu`."""
    return name.rpartition("/")[2].replace("-", "_").replace(".", "_")
