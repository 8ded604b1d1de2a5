"""Digests and keys: the same value gives the same key on every machine and in every folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

KEY_LENGTH = 32  # hex digits, 128 bits


def canonical(value: object) -> bytes:
    """The one JSON spelling of `value`: sorted names, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def key_of(value: object) -> str:
    """The key of a JSON-able value."""
    return hashlib.sha256(canonical(value)).hexdigest()[:KEY_LENGTH]


def bytes_digest(data: bytes) -> str:
    """The SHA-256 of `data`, in hex."""
    return hashlib.sha256(data).hexdigest()


def place_of(roots: Mapping[str, str]) -> str:
    """A short name for where the roots lie, so that two checkouts or environments keep their stamps apart."""
    return key_of(sorted(roots.items()))[:12]


def result_key(plan_key: str, files: Iterable[tuple[str, str, str]]) -> str:
    """The key of a build's outcome: its plan and the (root, path, digest) of every file that the compiler read."""
    return key_of([plan_key, sorted(set(files))])
