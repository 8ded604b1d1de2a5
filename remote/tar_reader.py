"""Reads the tar.zst of a blob in one pass and within bounds: on memory, files, and bytes, packed and unpacked.

Python's tarfile keeps every member in memory, and what damaged headers make it do differs between versions. This reader
accepts only what `blobs.pack` writes: regular files, with a pax record for a long name.
"""

from __future__ import annotations

import importlib
import io
import re
import sys
from collections.abc import Iterator
from typing import IO, Any

from opforge.errors import ExtraNotInstalledError

BLOCK, CHUNK = 512, 64 << 10
MAX_MEMBERS = 200_000
"""Limit on the headers that are read."""
MAX_NAME = 64 << 10
"""Limit on the bytes of the pax record of a long name."""
MAX_PADDING = 1 << 20
"""Limit on the zeros after the last member. tar fills an archive up to a multiple of 10 KB."""
EMPTY_BYTES = 10_240
"""Size of an archive without members. A larger one that has none has lost them."""
ZSTD_WINDOW_LOG = 23
"""Memory for unpacking zstd: 8 MiB, which every level up to 19 keeps to."""
REGULAR, PAX = b"0\0", b"x"
"""The kinds of members that are accepted: files, spelled in one of two ways, and records about the next file."""
PAX_RECORD = re.compile(rb"([1-9][0-9]{0,5}) ([^=\n]{1,100})=")
NO_ARCHIVE = "it is not a tar archive, or its beginning is damaged"


class _ZstdFile(io.RawIOBase):
    """Reads one zstd frame with a bound on the window that it may ask for."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file, self._zstd = file, zstd()
        options = {self._zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG}
        self._decompressor = self._zstd.ZstdDecompressor(options=options)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = b""
        try:
            while not content and not self._decompressor.eof:
                packed = self._file.read(CHUNK) if self._decompressor.needs_input else b""
                if self._decompressor.needs_input and not packed:
                    raise EOFError("it ends within a frame")
                content = self._decompressor.decompress(packed, len(buffer))
        except self._zstd.ZstdError as error:
            raise ValueError(str(error)) from error
        buffer[: len(content)] = content
        return len(content)


def zstd() -> Any:
    """Returns the module that packs and unpacks zstd. Raises ExtraNotInstalledError if there is none."""
    try:
        if sys.version_info >= (3, 14):
            return importlib.import_module("compression.zstd")
        return importlib.import_module("backports.zstd")
    except ImportError as error:
        raise ExtraNotInstalledError("The compression of fetched ops", "backports.zstd", "sign") from error


class TarReader:
    """The members of an archive, in order: `members` yields each header, `content` the bytes of the current one."""

    def __init__(self, file: IO[bytes], allowed: int) -> None:
        """Begins to read. `allowed` bounds the bytes that it may unpack to."""
        self._stream, self._allowed = io.BufferedReader(_ZstdFile(file), CHUNK), allowed
        self._total = self._unread = self._padding = 0
        self.is_executable = False
        """Whether the current file's mode says that its owner may execute it."""

    def members(self) -> Iterator[tuple[str, int]]:
        """Yields (name, bytes) of each file. Raises ValueError for what `blobs.pack` would not write."""
        count, long_name = 0, ""
        while True:
            for _chunk in self.content():
                pass  # the caller did not want it
            self._read(self._padding)
            header = self._header(count)
            if not header:
                if long_name:
                    raise ValueError(f"the file {long_name!r} is missing: it is cut short or damaged")
                return
            count += 1
            name, size = _parse(header, count == 1)
            if count > MAX_MEMBERS or self._total + size > self._allowed:
                raise ValueError(f"it holds more than {MAX_MEMBERS} files or {self._allowed} bytes")
            self._unread, self._padding = size, -size % BLOCK
            kind = header[156:157]
            if kind == PAX and size <= MAX_NAME and not long_name:
                long_name = _long_name(b"".join(self.content()), name)
            elif kind in REGULAR:
                self.is_executable = bool((_octal(header[100:108]) or 0) & 0o100)
                yield long_name or name, size
                long_name = ""
            else:
                raise ValueError(f"{name!r} is not a regular file")

    def content(self) -> Iterator[bytes]:
        """Yields the rest of the current file, in parts of at most CHUNK bytes."""
        while self._unread:
            chunk = self._read(min(CHUNK, self._unread))
            self._unread -= len(chunk)
            yield chunk

    def _header(self, count: int) -> bytes:
        """Returns the next header, or b"" at the end of the archive."""
        header = self._read(BLOCK, NO_ARCHIVE if not count else "it is cut short")
        if header.strip(b"\0"):
            return header
        padding = BLOCK
        while chunk := self._some(CHUNK):
            padding += len(chunk)
            if chunk.strip(b"\0"):
                raise ValueError("a header in it is only zeros: it is damaged")
            if padding > MAX_PADDING:
                raise ValueError(f"it has more than {MAX_PADDING} zeros at its end: it is damaged")
        if not count and padding != EMPTY_BYTES:
            raise ValueError(NO_ARCHIVE)
        return b""

    def _read(self, size: int, problem: str = "it is cut short") -> bytes:
        """Returns so many bytes. Raises ValueError if there are fewer."""
        parts = []
        while size:
            chunk = self._some(size)
            if not chunk:
                raise ValueError(problem)
            parts.append(chunk)
            size -= len(chunk)
        return b"".join(parts)

    def _some(self, size: int) -> bytes:
        """Returns at most so many bytes; b"" at the end."""
        try:
            chunk = self._stream.read(size)
        except (EOFError, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno:
                raise  # the disk's own error
            raise ValueError(f"its compressed data is cut short or damaged ({error})") from error
        self._total += len(chunk)
        return chunk


def _parse(header: bytes, is_first: bool) -> tuple[str, int]:
    """Returns the name and the size that a header states."""
    checksum, size = _octal(header[148:156]), _octal(header[124:136])
    if checksum != sum(header[:148]) + 8 * ord(" ") + sum(header[156:]):
        raise ValueError(NO_ARCHIVE if is_first else "a header in it is damaged")
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    name = (prefix + b"/" if prefix else b"") + header[:100].partition(b"\0")[0]
    text = name.decode("utf-8", "backslashreplace")
    if size is None:
        raise ValueError(f"{text!r} has no valid size")
    return text, size


def _octal(field: bytes) -> int | None:
    """Returns the number in a header's field; None if it is none. Sizes from 8 GiB on have another form."""
    text = field.strip(b" \0")
    return int(text, 8) if re.fullmatch(rb"[0-7]+", text) else None


def _long_name(record: bytes, name: str) -> str:
    """Returns the name in a pax record. Raises ValueError if it is damaged, or changes more than a name and times."""
    position, path = 0, ""
    while position < len(record):
        match = PAX_RECORD.match(record, position)
        end = position + int(match[1]) if match else 0
        if match is None or end <= match.end() or record[end - 1 : end] != b"\n":
            raise ValueError(f"the record {name!r} in it is damaged")
        keyword = match[2].decode("utf-8", "backslashreplace")
        if keyword == "path":
            path = record[match.end() : end - 1].decode("utf-8", "backslashreplace")
        elif keyword not in ("mtime", "atime", "ctime"):
            raise ValueError(f"{name!r} is not a regular file: it sets {keyword!r}")
        position = end
    return path
