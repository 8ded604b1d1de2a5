"""The blob of a variant: its files as a deterministic tar.zst, in the order of their names."""

from __future__ import annotations

import os
from typing import IO

from opforge.cache.filesystem.disk import digest_of
from opforge.cache.transfer.tar_reader import TarReader, open_regular, zstd
from opforge.errors import KernelInstallError
from opforge.packages.form import digests, metadata
from opforge.remote.offers import Blob

ADVICE = "The remote, or what lies between, has changed it: report it to the remote's owner"


def pack(folder: str, file: IO[bytes]) -> Blob:
    """Writes a variant's folder to a new file; returns what a release says of it. Raises OSError, ValueError."""
    import tarfile  # not for what is unpacked

    from opforge.cache.transfer.archive import member
    from opforge.remote.blobs import LEVEL, Counted

    paths = [*digests.files_of(folder), metadata.FILE]
    with zstd().ZstdFile(file, "wb", level=LEVEL) as packed:
        counted = Counted(packed)
        with tarfile.open(fileobj=counted, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path in sorted(paths):
                with open_regular(os.path.join(folder, path)) as content:
                    archive.addfile(member(path, os.fstat(content.fileno()).st_size), content)
    file.flush()
    size = file.tell()
    file.seek(0)
    return Blob(digest_of(file.fileno()), size, counted.count)


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
            if problem:
                raise ValueError(problem)
            seen.add(path)
            _write(os.path.join(folder, path), reader)
    except ValueError as error:
        raise KernelInstallError(what, f"its blob cannot be unpacked: {error}", ADVICE) from error


def _write(path: str, reader: TarReader) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise ValueError(f"{os.path.basename(path)!r} is both a file and a folder in it") from error
    with os.fdopen(handle, "wb") as file:
        for chunk in reader.content():
            file.write(chunk)
