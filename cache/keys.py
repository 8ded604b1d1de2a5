"""Digests and keys: the same value has the same key on every machine and in every folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

KEY_LENGTH = 32  # hex digits, 128 bits


def canonical(value: object) -> bytes:
    """Returns the one JSON form of `value` that is hashed: sorted names, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


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
