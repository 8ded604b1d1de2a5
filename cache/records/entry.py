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
"""Bytes read at a time: so few that the same memory is used again, which is faster than asking the system for more."""
hashlib.sha256()  # finding OpenSSL's implementation takes as long as hashing an op: not when one is loaded
FULL_CHECK_BYTES = 2 << 20
"""Up to this size a library is hashed at every load; above it, its stamp of the last full check is enough."""


class Entry(NamedTuple):
    """A built library on disk."""

    result: str
    folder: str
    binary: Mapping[str, Any]
    """file, size (bytes), sha256, stamp, and what the producer added: abi, exports, requires, ..."""
    origin: str
    """Where it came from: "built", "cache", or the path of a read-only layer."""
    ticket: Mapping[str, Any] = {}
    """The stamps under which it was found, where a ticket vouches for it."""

    @property
    def watched(self) -> Sequence[Sequence[Any]]:
        """(root, path, stamp...) of each open file that it was built from, as far as its ticket tells."""
        found: Sequence[Sequence[Any]] = self.ticket.get("open", ())
        return found

    @property
    def library(self) -> str:
        """The absolute path of the library. It is unique to its content, as the dynamic linker needs it to be."""
        return os.path.join(self.folder, self.binary["file"])

    def manifest(self) -> dict[str, Any]:
        """The full manifest. Raises OSError or ValueError where it cannot be read."""
        data = read_json(os.path.join(self.folder, MANIFEST))
        if not isinstance(data, dict):
            raise ValueError("the manifest is no object")
        return data


def is_record(binary: Any) -> bool:
    """Whether this is what a manifest or a ticket says of a library, and names a file inside its entry."""
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


def damage(entry: Entry, owners: Collection[int], full: bool = False, writable: int = 0) -> str | None:
    """What is wrong with an entry's library, or None. `owners` are the user ids that it may belong to.

    `writable` holds the mode bits for others to write it that are no objection.
    """
    binary = entry.binary
    try:
        place = os.lstat(entry.folder)
    except OSError as error:
        return f"its folder cannot be looked at ({error.strerror})"
    if not stat.S_ISDIR(place.st_mode) or place.st_uid not in owners:
        return "its folder is a link, a file, or somebody else's"
    try:
        # Without O_NONBLOCK a pipe in the library's place would keep us waiting for ever.
        handle = os.open(entry.library, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return f"the library cannot be opened ({error.strerror})"
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            return "the library is no regular file"
        if found.st_uid not in owners:
            return f"the library belongs to user {found.st_uid}, who is not trusted here"
        if found.st_mode & 0o022 & ~writable:
            return f"the library can be written by others (mode {stat.S_IMODE(found.st_mode):o})"
        if found.st_size != binary["size"]:
            return f"the library has {found.st_size} bytes instead of {binary['size']}"
        stamp = [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]
        if not full and found.st_size > FULL_CHECK_BYTES and stamp == binary.get("stamp"):
            return None
        digest = hashlib.sha256()
        while chunk := os.read(handle, min(CHUNK, found.st_size + 1)):
            digest.update(chunk)
        return None if digest.hexdigest() == binary["sha256"] else "the library's digest differs from its manifest's"
    finally:
        os.close(handle)
