"""An entry: one built library with its manifest, immutable once published, checked each time before it is used."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from opforge.cache.filesystem.files import read_json

MANIFEST = "manifest.json"
CHUNK = 32 << 10
"""Bytes read at a time: small enough that the same memory is reused, which is faster than new memory each time."""
hashlib.sha256()  # finds OpenSSL's implementation, which takes as long as hashing an op: not when one is loaded
FULL_CHECK_BYTES = 2 << 20
"""Up to this size a library is hashed at every load. A larger one is hashed only if its stamp differs from that of its
last full check."""


class Entry(NamedTuple):
    """A built library on disk."""

    key: str
    folder: str
    binary: Mapping[str, Any]
    """The binary record: file, size (bytes), sha256, stamp, and what the build added: abi, exports, requires, ..."""
    origin: str
    """Where it came from: "built", "cache", or the path of a read-only layer."""
    stat_record: Mapping[str, Any] = {}
    """The stamps under which it was found; empty if there are none."""

    @property
    def watched(self) -> Sequence[Sequence[Any]]:
        """(root, path, stamp...) of each file that is checked one by one; empty without a stat record."""
        files: Sequence[Sequence[Any]] = self.stat_record.get("open", ())
        return files

    @property
    def library(self) -> str:
        """The library's absolute path. It is unique to the content, as the dynamic linker requires."""
        return os.path.join(self.folder, self.binary["file"])

    def manifest(self) -> dict[str, Any]:
        """Returns the full manifest. Raises OSError or ValueError if it cannot be read."""
        data = read_json(os.path.join(self.folder, MANIFEST))
        if not isinstance(data, dict):
            raise ValueError("the manifest is not an object")
        return data


def is_binary_record(binary: Any) -> bool:
    """Returns whether this is the record of a library, and names a file inside its entry."""
    try:
        file = binary["file"]
        return (
            isinstance(file, str)
            and os.path.basename(file) == file not in ("", ".", "..")
            and isinstance(binary["size"], int)
            and isinstance(binary["sha256"], str)
            and isinstance(binary["abi"], str)
        )
    except (KeyError, TypeError, IndexError):
        return False


def integrity_problem(
    entry: Entry, owners: Collection[int], full: bool = False, allowed_write_bits: int = 0
) -> str | None:
    """Returns what is wrong with an entry's library, or None.

    Args:
        entry: The entry, whose manifest has been read.
        owners: The user ids that the entry may belong to.
        full: Hash the library, whatever its stamp.
        allowed_write_bits: The mode bits by which other users may write the library.
    """
    binary = entry.binary
    try:
        folder = os.lstat(entry.folder)
    except (OSError, ValueError) as error:  # ValueError: a damaged record has a zero byte in its key
        return f"its folder cannot be looked at ({getattr(error, 'strerror', error)})"
    if not stat.S_ISDIR(folder.st_mode) or folder.st_uid not in owners:
        return "its folder is a link, a file, or another user's"
    try:
        # Without O_NONBLOCK a pipe in the library's place would block for ever.
        handle = os.open(entry.library, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        return f"the library cannot be opened ({getattr(error, 'strerror', error)})"
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return "the library is not a regular file"
        if status.st_uid not in owners:
            return f"the library belongs to user {status.st_uid}, who is not trusted here"
        if status.st_mode & 0o022 & ~allowed_write_bits:
            return f"the library can be written by others (mode {stat.S_IMODE(status.st_mode):o})"
        if status.st_size != binary["size"]:
            return f"the library has {status.st_size} bytes instead of {binary['size']}"
        stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        if not full and status.st_size > FULL_CHECK_BYTES and stamp == binary.get("stamp"):
            return None
        digest = hashlib.sha256()
        while chunk := os.read(handle, min(CHUNK, status.st_size + 1)):
            digest.update(chunk)
        return None if digest.hexdigest() == binary["sha256"] else "the library's digest differs from its manifest's"
    finally:
        os.close(handle)
