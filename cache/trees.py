"""Trees: files named by the digest of their list. What is loaded is a tree: an op's library, a package's folder.

The list has a line for each file, sorted by path: its SHA-256, "x" or "-" for executable or not, and its path. The
SHA-256 of these lines names the tree, so the same files give the same name on every machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

MAX_PATH, MAX_PART, MAX_LEVELS = 400, 255, 32


class File(NamedTuple):
    """A file of a tree."""

    path: str
    sha256: str
    is_executable: bool


def path_problem(path: str) -> str:
    """Returns why a file of a package may not have this path, or an empty text."""
    parts = path.split("/")
    if not path or len(path) > MAX_PATH or not path.isascii() or not path.isprintable() or "\\" in path or ":" in path:
        expected = f"up to {MAX_PATH} printable ASCII characters, no backslash and no colon"
        return f"{ascii(path)[:100]} cannot be in a package: expected {expected}"
    if any(part in ("", ".", "..") or part.endswith((".", " ")) for part in parts):
        return f"{ascii(path)[:100]} does not stay inside the package"
    longest = max(map(len, parts))
    if longest > MAX_PART:
        return f"{ascii(path)[:100]} has a part of {longest} characters, more than {MAX_PART}"
    if len(parts) > MAX_LEVELS + 1:
        return f"{ascii(path)[:100]} is below {len(parts) - 1} levels of folders, more than {MAX_LEVELS}"
    return ""


def is_executable(path: str) -> bool:
    """Returns whether a file of this path is packed as executable: shared libraries are, whatever their mode here."""
    return path.endswith(".so")


def digest_of_files(files: Iterable[File]) -> str:
    """Returns the digest that names a tree."""
    lines = (f"{file.sha256} {'x' if file.is_executable else '-'} {file.path}\n" for file in sorted(files))
    return hashlib.sha256("".join(lines).encode("ascii")).hexdigest()


def digest_of_hashes(hashes: Mapping[str, str]) -> str:
    """Returns the digest that names a tree, by the SHA-256 of each file as it is packed."""
    return digest_of_files(File(path, sha256, is_executable(path)) for path, sha256 in hashes.items())
