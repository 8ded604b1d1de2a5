"""The blob of a variant: its files as a deterministic tar.zst, in the order of their names."""

from __future__ import annotations

import base64
import hashlib
import os
from typing import IO

from opforge.cache.filesystem.disk import digest_of
from opforge.cache.transfer.tar_reader import TarReader, open_regular, zstd
from opforge.errors import KernelInstallError
from opforge.packages.form import digests, metadata
from opforge.remote.offers import Blob

ADVICE = "The remote, or what lies between, has changed it: report it to the remote's owner"


class _Hashed:
    """Reads a file, and hashes what was read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._digest = file, hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._digest.update(data)
        return data

    def text(self) -> str:
        return base64.b64encode(self._digest.digest()).decode()


def pack(folder: str, file: IO[bytes]) -> tuple[Blob, dict[str, str]]:
    """Writes a variant's folder to a new file. Raises OSError, ValueError.

    Returns what a release says of it, and the SHA-256 of each file as it was packed: it may have changed since it was
    checked.
    """
    import tarfile  # not for what is unpacked

    from opforge.cache.transfer.archive import member
    from opforge.remote.blobs import LEVEL, Counted

    paths, hashed = [*digests.files_of(folder), metadata.FILE], dict[str, str]()
    with zstd().ZstdFile(file, "wb", level=LEVEL) as packed:
        counted = Counted(packed)
        with tarfile.open(fileobj=counted, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path in sorted(paths):
                with open_regular(os.path.join(folder, path)) as content:
                    reader = _Hashed(content)
                    archive.addfile(member(path, os.fstat(content.fileno()).st_size), reader)  # type: ignore[arg-type]
                    hashed[path] = reader.text()
    file.flush()
    size = file.tell()
    file.seek(0)
    return Blob(digest_of(file.fileno()), size, counted.count), hashed


def unpack(file: IO[bytes], blob: Blob, folder: str, what: str) -> None:
    """Unpacks a downloaded blob into a new folder, one file at a time. Its digest is checked first.

    Raises KernelInstallError, OSError.
    """
    file.flush()
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    if size != blob.size or digest_of(file.fileno()) != blob.sha256:
        raise KernelInstallError(what, "its blob is not the one that its release names", ADVICE)
    file.seek(0)
    os.mkdir(folder, 0o700)
    seen: set[str] = set()
    try:
        reader = TarReader(file, blob.unpacked)
        for path, _size in reader.members():
            problem = digests.path_problem(path) or (f"{path!r} is in it twice" if path in seen else "")
            if len(seen) == metadata.MAX_FILES:
                problem = f"it has more than {metadata.MAX_FILES} files"
            if problem:
                raise ValueError(problem)
            seen.add(path)
            _write(folder, path, reader)
    except ValueError as error:
        raise KernelInstallError(what, f"its blob cannot be unpacked: {error}", ADVICE) from error


def _write(folder: str, path: str, reader: TarReader) -> None:
    full = os.path.join(folder, path)
    try:
        os.makedirs(os.path.dirname(full), mode=0o700, exist_ok=True)
        handle = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(f"{path!r} is both a file and a folder in it") from error
    with os.fdopen(handle, "wb") as file:
        for chunk in reader.content():
            file.write(chunk)
