"""Trees: files named by the digest of their list. Loaded code is always a tree: an op's library, a package's folder.

The list has a line for each file, sorted by path: its SHA-256, "x" or "-" for executable or not, and its path. The
SHA-256 of these lines names the tree, so the same files give the same name on every machine.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from opforge.foundation.file_owners import others_bits

from .filesystem.disk import digest_of

MAX_PATH, MAX_PART, MAX_LEVELS = 400, 255, 32


class TreeError(ValueError):
    """The files of a tree must not be used; the text says why."""


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


def hashes_of(folder: str, paths: Iterable[str], most: int, owners: Collection[int] = ()) -> dict[str, str]:
    """Returns the SHA-256 of files below a folder, by path. Raises OSError, TreeError.

    `most` is how many bytes they may have in all, `owners` the users that they may belong to; without these anybody's.
    """
    hashes, size = dict[str, str](), 0
    for path in paths:
        handle = os.open(os.path.join(folder, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or (owners and status.st_uid not in owners):
                raise TreeError(f"{path} must be a regular file owned by you")
            if owners and others_bits(status, handle):
                raise TreeError(f"others can write {path}")
            size += status.st_size
            if size > most:
                raise TreeError(f"it has more than {most} bytes")
            hashes[path] = digest_of(handle)
        finally:
            os.close(handle)
    return hashes
