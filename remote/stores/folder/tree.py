"""The files below a store's folder, by descriptors: no link is followed, modes do not depend on the umask."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import BinaryIO

from opforge.foundation.files import fsync

INCOMING = ".incoming"
"""The folder in which files are written before they get their names. No object's name begins with a dot."""
_STAGED = re.compile(r"(?:void\.)?[0-9]+\.[0-9a-f]{16}")
"""The names in it. What a user has put there stays."""
CHUNK = 64 << 10
ABANDONED_SECONDS = 86400.0
"""A file that was put into INCOMING this long ago was left there by a process that was killed."""
OPEN_ATTEMPTS = 5
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class NoRootError(Exception):
    """The store's folder itself cannot be opened; the cause is an OSError."""


@contextmanager
def folder(root: str, parts: Sequence[str] = (), make: bool = False) -> Iterator[int]:
    """Yields a descriptor of a folder below `root`; with `make`, missing folders are made, with the root's mode.

    The root itself is never made: if its file system is not mounted, the wrong disk would be filled.

    Raises:
        NoRootError: The root cannot be opened.
        OSError: A part is missing (FileNotFoundError), or is a link or a file.
    """
    try:
        handle = os.open(root, _FOLDER)
    except OSError as error:
        raise NoRootError from error
    try:
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        for part in parts:
            child = _open_child(handle, part, mode if make else None)
            os.close(handle)
            handle = child
        yield handle
    finally:
        os.close(handle)


def _open_child(parent: int, name: str, mode: int | None) -> int:
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except FileNotFoundError:
        if mode is None:
            raise
    is_new = True
    try:
        os.mkdir(name, mode, dir_fd=parent)
    except FileExistsError:
        is_new = False  # another process made it just now
    child = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    try:
        if is_new:
            os.fchmod(child, mode)  # without the umask; a set-group-ID bit is kept, so the group is the root's
            fsync(parent)
    except BaseException:
        os.close(child)
        raise
    return child


def open_file(parent: int, name: str) -> tuple[int, os.stat_result]:
    """Returns a descriptor of a file for reading, and its status. Raises OSError, also for a link, pipe or folder.

    A client of NFS remembers which file has a name. If another client has replaced it since, the file that is opened
    has no name any more, or the server does not know it. Unlike open(2), stat(2) then asks the server for the name.
    """
    for _attempt in range(OPEN_ATTEMPTS):
        try:
            handle, status = _open_regular(parent, name)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
        else:
            if status.st_nlink:
                return handle, status
            os.close(handle)
        _look_up(parent, name)
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), name)


def _look_up(parent: int, name: str) -> None:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise


def _open_regular(parent: int, name: str) -> tuple[int, os.stat_result]:
    # Without O_NONBLOCK a pipe in a file's place would block for ever.
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "Is not a regular file", name)
    except BaseException:
        os.close(handle)
        raise
    return handle, status


@contextmanager
def staged(root: str, data: bytes | BinaryIO) -> Iterator[tuple[int, str]]:
    """Writes a file that has no name as an object yet; yields the descriptor of its folder, and its name there.

    What it holds is on the disk when this yields. It is removed at the end, unless it was renamed. Files that killed
    processes have left are removed too.
    """
    with folder(root, (INCOMING,), make=True) as incoming:
        name = f"{os.getpid()}.{os.urandom(8).hex()}"
        try:
            modified = _write(incoming, name, data)
            _sweep(incoming, modified - ABANDONED_SECONDS)
            yield incoming, name
        finally:
            with suppress(FileNotFoundError):  # it was renamed, or could not be made
                os.unlink(name, dir_fd=incoming)


def _write(incoming: int, name: str, data: bytes | BinaryIO) -> float:
    """Writes a file and syncs it; returns its time of modification, by the clock of the file system."""
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=incoming)
    try:
        if isinstance(data, bytes):
            _write_all(handle, data)
        else:
            data.seek(0)
            while chunk := data.read(CHUNK):
                _write_all(handle, chunk)
        # Who may enter the folder may read its files. Nobody but the owner may change a file in place.
        os.fchmod(handle, stat.S_IMODE(os.fstat(incoming).st_mode) & 0o444 | 0o600)
        fsync(handle)
        return os.fstat(handle).st_mtime
    finally:
        os.close(handle)


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _sweep(incoming: int, before: float) -> None:
    with os.scandir(incoming) as entries:
        for entry in entries:
            with suppress(OSError):  # another user's file in a folder with the sticky bit, or it is gone already
                if _STAGED.fullmatch(entry.name) and entry.stat(follow_symlinks=False).st_mtime < before:
                    os.unlink(entry.name, dir_fd=incoming)


def link(staging: tuple[int, str], parent: int, name: str) -> bool:
    """Gives a staged file a further name. Returns False if there is something of that name."""
    incoming, source = staging
    try:
        os.link(source, name, src_dir_fd=incoming, dst_dir_fd=parent)
    except FileExistsError:
        # If the answer of an NFS server is lost, the request is repeated: then the first one has made the link.
        return os.stat(source, dir_fd=incoming, follow_symlinks=False).st_nlink == 2
    return True
