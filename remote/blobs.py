"""Blobs: an entry as a deterministic `tar.zst`, named by its SHA-256.

The same entry gives the same bytes. Unpacking trusts nothing but the digests that a signed offer states.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping
from typing import IO, Any

from opforge.cache.filesystem.disk import digest_of
from opforge.cache.keys import canonical
from opforge.cache.layout import entry_name
from opforge.cache.records.entry import RECORD
from opforge.cache.transfer.archive import MEMBER, member
from opforge.cache.transfer.tar_reader import TarReader, open_regular, zstd

from .offers import Blob, Offer

LEVEL = 9
"""zstd's level: a library of 1 MB packs in 30 ms to a third, and unpacks in 2 ms at any level."""
SMALL_BYTES, SMALL_WINDOW_LOG = 2 << 20, 17
"""A library up to this size is packed with a window of 128 KiB, which is what unpacking holds in memory: its blob is
two percent larger. With the level's own window, of 4 MiB, the whole library would be in memory once more."""


class BlobError(ValueError):
    """A blob is not what its offer says; the text says why."""


class Counted(io.RawIOBase):
    """Passes bytes on and counts them."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file, self.count = file, 0

    def writable(self) -> bool:
        """Returns true."""
        return True

    def tell(self) -> int:
        """Returns how many bytes have passed."""
        return self.count

    def write(self, data: Any) -> int:
        """Passes bytes on; returns how many."""
        self._file.write(data)
        self.count += len(data)
        return len(data)


def pack(folder: str, record: Mapping[str, Any], file: IO[bytes]) -> Blob:
    """Writes the entry in a folder to a new file, and returns what an offer says of it.

    Raises OSError, ValueError if the library is not the record's, ExtraNotInstalledError.
    """
    text, prefix = canonical(record), f"entries/{entry_name(record['key'], record['sha256'])}"
    parameter = zstd().CompressionParameter
    options = {parameter.compression_level: LEVEL}
    if record["size"] <= SMALL_BYTES:
        options[parameter.window_log] = SMALL_WINDOW_LOG
    with (
        zstd().ZstdFile(file, "wb", options=options) as packed,
        open_regular(os.path.join(folder, record["file"])) as library,
    ):
        if os.fstat(library.fileno()).st_size != record["size"] or digest_of(library.fileno()) != record["sha256"]:
            raise ValueError(f"{folder} is damaged: its library is not that of its record")
        library.seek(0)
        counted = Counted(packed)
        with tarfile.open(fileobj=counted, mode="w", format=tarfile.PAX_FORMAT) as archive:
            archive.addfile(member(f"{prefix}/{RECORD}", len(text)), io.BytesIO(text))
            archive.addfile(member(f"{prefix}/{record['file']}", record["size"]), library)
    file.flush()
    size = file.tell()
    file.seek(0)
    return Blob(digest_of(file.fileno()), size, counted.count)


def check(file: IO[bytes], blob: Blob) -> None:
    """Raises BlobError if a file is not the blob that an offer names."""
    size = os.fstat(file.fileno()).st_size
    if size != blob.size:
        raise BlobError(f"the blob has {size} bytes instead of {blob.size}")
    file.seek(0)
    if digest_of(file.fileno()) != blob.sha256:
        raise BlobError("the blob's digest differs from its offer's")
    file.seek(0)


def unpack(file: IO[bytes], offer: Offer, folder: str) -> None:
    """Unpacks a blob that was checked into a new folder: the record and the library of the offer, and nothing else.

    Raises BlobError, OSError, ExtraNotInstalledError.
    """
    os.mkdir(folder, 0o700)
    expected = {RECORD: len(canonical(offer.record)), offer.record["file"]: int(offer.record["size"])}
    try:
        reader = TarReader(file, offer.blob.unpacked)
        for path, size in reader.members():
            match = MEMBER.fullmatch(path)
            if match is None or match[1] != offer.entry or expected.pop(match[2], None) != size:
                raise BlobError(f"{path!r} in the blob is not a file of its entry")
            _write(os.path.join(folder, match[2]), reader)
    except BlobError:
        raise
    except ValueError as error:
        raise BlobError(f"the blob cannot be unpacked: {error}") from error
    if expected:
        raise BlobError(f"the blob lacks {', '.join(expected)}")
    with open(os.path.join(folder, RECORD), "rb") as stored:
        if stored.read() != canonical(offer.record):
            raise BlobError("the record in the blob is not that of its offer")


def _write(path: str, reader: TarReader) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        for chunk in reader.content():
            file.write(chunk)
