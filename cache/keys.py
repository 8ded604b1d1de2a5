"""Digests and keys: the same value has the same key on every machine and in every folder."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from typing import Any

KEY_LENGTH = 32  # hex digits, 128 bits


def canonical(value: object) -> bytes:
    """Returns the one JSON form of `value` that is hashed: sorted names, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def readable(value: object) -> bytes:
    """Returns a text of JSON for files that people read too: sorted names, indented."""
    return (json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def strict(data: bytes) -> Any:
    """Returns the value in a text of JSON that others wrote.

    Raises ValueError, also for a name that is in an object twice, NaN and Infinity, a number that is too large
    for a float, and half of a surrogate pair, which is no text; RecursionError if it is nested too deeply.
    """
    value = json.loads(
        data.decode("utf-8"),
        object_pairs_hook=_unique,
        parse_constant=_refuse,
        parse_float=_finite,
        parse_int=_whole,
    )
    if b"\\u" in data:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _value in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{ascii(twice)[:100]} is in it twice")
    return names


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON value")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:60]} is too large a number")
    return number


def _whole(text: str) -> int:
    _finite(text)
    return int(text)


def key_of(value: object) -> str:
    """Returns the key of a JSON-able value: 32 hex digits."""
    return hashlib.sha256(canonical(value)).hexdigest()[:KEY_LENGTH]


def bytes_digest(data: bytes) -> str:
    """Returns the SHA-256 of `data`, in hex."""
    return hashlib.sha256(data).hexdigest()


def entry_key(
    plan_key: str,
    files: Iterable[tuple[str, str, str]],
    answers: Iterable[tuple[str, tuple[tuple[str, str], ...]]] = (),
) -> str:
    """Returns the result key.

    It depends on the plan, on the (root, path, digest) of every file that the compiler read, in any order, and on the
    answer to every question that was asked without reading a file.
    """
    return key_of([plan_key, sorted(set(files)), sorted(set(answers))])
