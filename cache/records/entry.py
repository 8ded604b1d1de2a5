"""An entry: one built library with its record, immutable once published, checked each time before it is used.

    entries/KEY-DIGITS/OP-....so      KEY is the result key, DIGITS are the first of the library's SHA-256
    entries/KEY-DIGITS/record.json    what the library is and needs, and the op's own files: a few kilobytes
    entries/KEY-DIGITS/build.json     the plan, every file that was read, and what the build printed

Choosing an entry and loading it read the record alone. What is shipped, in a layer or a wheel, has no build.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from opforge import formats
from opforge.cache.filesystem.disk import ABSENT, FlatStamps, PathStamp
from opforge.cache.filesystem.files import MAX_RECORD_BYTES, read_file
from opforge.cache.layout import entry_name
from opforge.trust import others_bits

RECORD, BUILD = "record.json", "build.json"
RECORD_KEY = "record_key"
READ_FORMATS = range(1, formats.RECORD + 1)
"""The formats of records that are read."""
CHUNK = 32 << 10
"""Bytes read at a time: small enough that the same memory is reused, which is faster than new memory each time."""
hashlib.sha256()  # finds OpenSSL's implementation, which takes as long as hashing an op: not when one is loaded
FULL_CHECK_BYTES = 2 << 20
"""Up to this size a library is hashed at every load. A larger one is hashed only if its stamp differs from that of its
last full check."""
TEXTS = ("key", "plan", "description", "op", "abi", "target", "file", "sha256")
"""The fields of a record that are texts, and that every record has."""


PACKAGES = ("/site-packages/", "/dist-packages/")
"""The folders that Python's packages are installed in."""


class Stamped(NamedTuple):
    """The stamps of an entry's inputs, as they were before the contents were compared."""

    files: tuple[PathStamp, ...]
    """Those that are checked one by one: files in no trusted tree."""
    others: tuple[PathStamp, ...]
    """The folders in which a header could appear, and the stamp file of each trusted tree."""
    variables: tuple[tuple[str, str], ...] = ()
    """The environment variables whose values are a part of the library, with these values."""

    @property
    def watched(self) -> FlatStamps:
        """What a process that has loaded the entry compares again: all but what belongs to installed packages.

        What the system's packages add to its folders changes the stamp of their database too, which is in `others`.
        """
        others = [(path, stamp) for path, stamp in self.others if not is_systems(path)]
        return FlatStamps.of(file for file in (*self.files, *others) if not any(name in file[0] for name in PACKAGES))

    @property
    def is_complete(self) -> bool:
        """Whether all of them exist: a tree without its stamp file is not trusted."""
        return all(stamp != ABSENT for _path, stamp in (*self.files, *self.others))


def is_systems(folder: str) -> bool:
    """Returns whether a folder is one that the system's packages are installed in."""
    parts = folder.strip("/").split("/")
    return parts[0] == "usr" and parts[1:2] != ["local"]


class Entry(NamedTuple):
    """A built library on disk."""

    key: str
    """The name of its folder: the result key and the first digits of the library's SHA-256."""
    folder: str
    record: Mapping[str, Any]
    """What the library is and needs: file, size (bytes), sha256, abi, exports, requires, ..."""
    origin: str
    """Where it came from: "built", "cache", or the path of a read-only layer."""
    watched: FlatStamps = FlatStamps()
    """The files that it was built from, and the folders in which an earlier one would appear: see `Stamped.watched`."""

    def __repr__(self) -> str:
        """Returns the op, the target and the source, and not the whole record."""
        op, target = self.record.get("op"), self.record.get("target")
        return f"<entry {self.key} of {op!r} for {target} ({self.origin})\n  {self.folder}>"

    @property
    def library(self) -> str:
        """The library's absolute path. It is unique to the content, as the dynamic linker requires."""
        return f"{self.folder}/{self.record['file']}"

    def build(self) -> dict[str, Any]:
        """Returns how it was built. Raises OSError or FormatError if that is not known, as in a layer."""
        from opforge.cache import schema  # not on the path of a hit

        from .schemas import BUILD as DECLARED

        value: dict[str, Any] = schema.read(os.path.join(self.folder, BUILD), DECLARED)
        return value


def is_record(record: Any) -> bool:
    """Returns whether this is the record of a library in a format that is read, and names a file inside its entry."""
    try:
        file = record["file"]
        return (
            record["format"] in READ_FORMATS
            and all(isinstance(record[name], str) for name in TEXTS)
            and os.path.basename(file) == file not in ("", ".", "..")
            and isinstance(record["size"], int)
            and isinstance(record["python_module"], bool)
            and all(isinstance(name, str) for names in (record["exports"], record["needs"]) for name in names)
        )
    except (KeyError, TypeError, IndexError):
        return False


def read_record(folder: str) -> dict[str, Any] | None:
    """Returns the record in an entry's folder, or None if there is no valid one.

    A record names its entry: one that lies in another entry's folder is not valid there. Raises OSError, ValueError.
    """
    text = read_file(os.path.join(folder, RECORD), MAX_RECORD_BYTES)
    try:
        record = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"{RECORD} is nested too deeply") from error
    is_own = is_record(record) and entry_name(record["key"], record["sha256"]) == os.path.basename(folder)
    return record if is_own and (_is_as_written(text, record) or is_intact(record)) else None


def record_text(record: Mapping[str, Any]) -> bytes:
    """Returns what a record's file holds: the record with its key, in canonical form."""
    from opforge.cache.keys import canonical  # not on the path of a hit

    return canonical(with_record_key(record))


def _is_as_written(text: bytes, record: Mapping[str, Any]) -> bool:
    """Returns whether this is what `record_text` returned, by a digest: `is_intact` has to write the record again."""
    from opforge.cache.keys import KEY_LENGTH, bytes_digest

    stated = str(record.get(RECORD_KEY))
    rest = text.replace(f'"{RECORD_KEY}":"{stated}",'.encode(), b"", 1)
    return bytes_digest(rest)[:KEY_LENGTH] == stated


def with_record_key(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a record with the key of all its other fields, so that a lost or damaged field is noticed."""
    from opforge.cache.keys import key_of  # not on the path of a hit

    fields = {name: value for name, value in record.items() if name != RECORD_KEY}
    return {**fields, RECORD_KEY: key_of(fields)}


def is_intact(record: Mapping[str, Any]) -> bool:
    """Returns whether the fields of a record are those that it was written with."""
    return with_record_key(record) == record


def integrity_problem(
    entry: Entry, owners: Collection[int], full: bool = False, allowed_write_bits: int = 0
) -> str | None:
    """Returns what is wrong with an entry's library, or None.

    Args:
        entry: The entry, whose record has been read.
        owners: The user ids that the entry may belong to.
        full: Hash the library, whatever its stamp.
        allowed_write_bits: The mode bits by which other users may write the library.
    """
    record = entry.record
    try:
        problem = _folders_problem(entry.folder, owners, allowed_write_bits)
    except (OSError, ValueError) as error:  # ValueError: a damaged record has a zero byte in its key
        problem = f"its folder cannot be read ({getattr(error, 'strerror', error)})"
    if problem:
        return problem
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
        if status.st_mode & 0o022 and others_bits(status) & ~allowed_write_bits:
            return f"the library can be written by others (mode {stat.S_IMODE(status.st_mode):o})"
        if status.st_size != record["size"]:
            return f"the library has {status.st_size} bytes instead of {record['size']}"
        stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        if not full and status.st_size > FULL_CHECK_BYTES and stamp == record.get("stamp"):
            return None
        digest = hashlib.sha256()
        while chunk := os.read(handle, min(CHUNK, status.st_size + 1)):
            digest.update(chunk)
        return None if digest.hexdigest() == record["sha256"] else "the library's digest differs from its record's"
    finally:
        os.close(handle)


def _folders_problem(folder: str, owners: Collection[int], allowed_write_bits: int) -> str | None:
    """Returns why somebody else could put another file in a library's place, or None.

    The entry's folder, `entries` and the folder of the format are looked at; the store's root and what is above it are
    checked when the store is opened.
    """
    path = folder
    for _depth in range(3):
        status = os.lstat(path)
        whose = "its folder" if path == folder else path
        if not stat.S_ISDIR(status.st_mode) or status.st_uid not in owners:
            return f"{whose} is a link, a file, or another user's"
        if status.st_mode & 0o022 and others_bits(status) & ~allowed_write_bits:
            return f"{whose} can be written by others (mode {stat.S_IMODE(status.st_mode):o})"
        path = path.rpartition("/")[0]
    return None
