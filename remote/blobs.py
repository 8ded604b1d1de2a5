"""Blobs: trees as deterministic `tar.zst`, named by their SHA-256. The same files give the same bytes.

Unpacking trusts nothing but the digests that a signed statement gives.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from opforge.cache.filesystem.disk import digest_of
from opforge.cache.trees import File, digest_of_files, digest_of_hashes, path_problem
from opforge.errors import StoreError
from opforge.foundation.files import open_regular

from .stores.protocol import ObjectStore
from .tar_reader import TarReader, zstd

if TYPE_CHECKING:
    import tarfile

LEVEL = 9
"""zstd's level: a library of 1 MB packs in 30 ms to a third, and unpacks in 2 ms at any level."""
MAX_FILES = 10_000
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The errors of a disk, a quota or a limit that has no room for what a store sends."""
MAX_BLOB_BYTES, MAX_UNPACKED_BYTES = 2 << 30, 4 << 30


def name_of_blob(sha256: str) -> str:
    """Returns the name of a blob in a store."""
    return f"v1/blobs/sha256/{sha256[:2]}/{sha256}"


class Blob(NamedTuple):
    """A blob as a statement names it."""

    sha256: str
    size: int
    """Bytes of the packed blob."""
    unpacked: int
    """Bytes of what it unpacks to."""

    @property
    def name(self) -> str:
        """Its name in a store."""
        return name_of_blob(self.sha256)


class Tree(NamedTuple):
    """A tree as a statement names it."""

    digest: str
    blob: Blob


class BlobError(ValueError):
    """A blob is not what its statement says; the text says why."""


class _Hashed:
    """Reads a file, and hashes what was read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        return data


def pack(folder: str, paths: Iterable[str], file: IO[bytes]) -> tuple[Tree, dict[str, str]]:
    """Writes the files below a folder to a new file.

    Returns the tree, and the SHA-256 of each file as it was packed: it may have changed since it was checked. Raises
    OSError, ValueError for what is no regular file, or more than a blob may hold, ExtraNotInstalledError.
    """
    import tarfile  # not for what is unpacked

    hashes: dict[str, str] = {}
    with zstd().ZstdFile(file, "wb", level=LEVEL) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path in sorted(paths):
                with open_regular(os.path.join(folder, path)) as content:
                    size = os.fstat(content.fileno()).st_size
                    if packed.tell() + size > MAX_UNPACKED_BYTES:
                        raise ValueError(f"its {path} has {size} bytes: a blob holds at most {MAX_UNPACKED_BYTES}")
                    reader: Any = _Hashed(content)
                    archive.addfile(_header(path, size), reader)
                    hashes[path] = reader.digest.hexdigest()
        unpacked = packed.tell()
    file.flush()
    size = file.tell()
    file.seek(0)
    blob = Blob(digest_of(file.fileno()), size, unpacked)
    file.seek(0)
    return Tree(digest_of_hashes(hashes), blob), hashes


def _header(path: str, size: int) -> tarfile.TarInfo:
    """Returns a file's header, in which nothing differs between two packings: no time, no owner."""
    import tarfile

    header = tarfile.TarInfo(path)
    header.size, header.mode, header.mtime = size, 0o500 if path.endswith(".so") else 0o600, 0
    return header


def check(file: IO[bytes], blob: Blob) -> None:
    """Raises BlobError if a file is not the blob that a statement names."""
    file.flush()
    size = os.fstat(file.fileno()).st_size
    if size != blob.size:
        raise BlobError(f"the blob has {size} bytes instead of {blob.size}")
    file.seek(0)
    if digest_of(file.fileno()) != blob.sha256:
        raise BlobError("the blob's digest differs from that in its statement")
    file.seek(0)


def fetch(store: ObjectStore, tree: Tree, folder: str, name: str) -> list[File]:
    """Fetches a tree from a store to the new folder `name` in a staging folder; returns its files.

    Raises StoreError, BlobError if the store has lost the blob or a part of it, OSError for this machine's disk, and
    what `unpack` raises.
    """
    with open(os.path.join(folder, "blob"), "w+b") as file:
        try:
            store.download(tree.blob.name, file, tree.blob.size)
        except StoreError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in FULL:
                raise error.__cause__ from None  # of this machine's disk: nothing is wrong with the blob
            store.exists(tree.blob.name)  # a store that answers has other blobs: this one alone is not used
            raise BlobError(str(error)) from error
        return unpack(file, tree, os.path.join(folder, name))


def unpack(file: IO[bytes], tree: Tree, folder: str) -> list[File]:
    """Unpacks a blob into a new folder, after checking it; returns the files.

    Only one file is on the disk that was not compared yet, and no more than a part of one in memory. Raises BlobError,
    also for files that are not the tree's, OSError, ExtraNotInstalledError.
    """
    check(file, tree.blob)
    os.mkdir(folder, 0o700)
    files: dict[str, File] = {}
    try:
        reader = TarReader(file, tree.blob.unpacked)
        for path, _size in reader.members():
            problem = path_problem(path) or (f"{path!r} is in it twice" if path in files else "")
            if len(files) == MAX_FILES:
                problem = f"it has more than {MAX_FILES} files"
            if problem:
                raise ValueError(problem)
            files[path] = File(path, _write(folder, path, reader), reader.is_executable)
    except ValueError as error:
        raise BlobError(f"the blob cannot be unpacked: {error}") from error
    if digest_of_files(files.values()) != tree.digest:
        raise BlobError(f"the blob holds other files than its tree: {', '.join(sorted(files)[:3]) or 'none'}")
    return sorted(files.values())


def _write(folder: str, path: str, reader: TarReader) -> str:
    """Writes the archive's current file to a new one; returns its SHA-256."""
    full, digest = os.path.join(folder, path), hashlib.sha256()
    try:
        os.makedirs(os.path.dirname(full), mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(full, flags, 0o700 if reader.is_executable else 0o600)
    except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(f"{path!r} is both a file and a folder in it") from error
    with os.fdopen(handle, "wb") as file:
        for chunk in reader.content():
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()
