"""Folders and whole files of opforge's own: made for one user, written by one rename, never through a link."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any

from . import remembered_values

MAX_FILE_BYTES = 64 << 20
"""No other file of the store is larger."""
MAX_RECORD_BYTES = remembered_values.MAX_BYTES
"""A build that read ten thousand files takes 2 MB."""
NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
"""Errors of fsync on a file system that does not support it."""


def make_folder(path: str, mode: int = 0o700) -> None:
    """Makes a folder and its parents, by default for this user alone, whatever the umask.

    Raises OSError, also if the folder is a link: what is then written to it would lie outside of the store.
    """
    if os.path.islink(path):
        raise OSError(errno.ENOTDIR, "Is a symbolic link", path)
    missing = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):  # os.makedirs would apply the mode to the last folder only
        try:
            os.mkdir(folder, mode)
            made = os.stat(folder).st_mode
            if made & 0o700 != 0o700:
                os.chmod(folder, stat.S_IMODE(made) | 0o700)  # a umask such as 0277 denies it to its owner
        except FileExistsError:
            if not os.path.isdir(folder):
                raise


def folder_names(folder: str) -> list[str]:
    """Returns the names in a folder, sorted; none if it cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def can_write(folder: str) -> bool:
    """Returns whether this process may make files in a folder, or may make the folder if it is missing."""
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    effective = os.access in os.supports_effective_ids
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK, effective_ids=effective)


def advice_of(error: OSError) -> str:
    """Returns what to do about a file that cannot be written or removed; empty if the error does not say enough."""
    if error.errno == errno.EROFS:
        return "Its file system is mounted read-only: run this where it can be written"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "Run this as its owner"
    if error.errno == errno.ENOENT and "temporary directory" in str(error.strerror):  # of tempfile
        return "Set TMPDIR to a folder that you can write"
    return "Free some space there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""


def temp_path(path: str) -> str:
    """Returns a path beside `path` that nothing else uses, for writing it before a rename."""
    return f"{path}.{os.getpid()}.{os.urandom(4).hex()}.tmp"


def write_file(path: str, data: bytes, mode: int = 0o600) -> None:
    """Writes a whole file by one rename, by default readable by this user alone. No reader ever sees a part of it."""
    temporary = temp_path(path)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    inode = os.fstat(handle).st_ino
    try:
        try:
            if mode != 0o600 or os.fstat(handle).st_mode & 0o600 != 0o600:
                os.fchmod(handle, mode)  # whatever the umask
            left = memoryview(data)
            while left:
                left = left[os.write(handle, left) :]
        finally:
            os.close(handle)
        try:
            os.replace(temporary, path)
        except FileNotFoundError:  # a request that NFS sends twice, as its answer was lost, is done and fails
            if os.stat(path).st_ino != inode:
                raise
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def open_to_append(path: str, flags: int = 0) -> int:
    """Opens a file of the store for appending, and returns the descriptor; with os.O_CREAT as `flags` it is made.

    Raises OSError, also for a link, a pipe or a device in the file's place, and for a file that has a second name: what
    is written would change another's file.
    """
    own = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path, own | flags, 0o600)
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or is_shared(status):
        os.close(handle)
        raise OSError(errno.EINVAL, "Is not a regular file with one name", path)
    return handle


def now_in(folder: str) -> float:
    """Returns the seconds since the epoch by the clock that sets the times of files in a folder.

    On a network file system that is the server's clock. The times of its files cannot be compared with this machine's.
    """
    path = temp_path(os.path.join(folder, "clock"))
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            return os.fstat(handle).st_mtime
        finally:
            os.close(handle)
            os.unlink(path)
    except OSError:
        return time.time()  # read-only: nothing can be removed there either


def is_shared(status: os.stat_result) -> bool:
    """Returns whether a file has a second name, which may lie outside of the store: it must not be changed in place."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink > 1


def fsync(handle: int) -> None:
    """Writes a file to the disk, or a folder's names, where the file system can. Raises OSError."""
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise


def is_temp_name(name: str) -> bool:
    """Returns whether a file or folder has a name that `temp_path` makes: only such a one may be swept."""
    if not name.endswith(".tmp"):
        return False
    stem, _, digits = name.removesuffix(".tmp").rpartition(".")
    writer = stem.rpartition(".")[2]
    is_hex = len(digits) == 8 and all(digit in "0123456789abcdef" for digit in digits)
    return is_hex and writer.isdecimal() and len(writer) < len(stem)


def is_special(path: str) -> bool:
    """Returns whether a path is a device or a pipe, or leads to a stream of this process as /dev/stdout does.

    A file must not be put in its place.
    """
    if os.path.islink(path) and os.readlink(path).startswith("/proc/"):
        return True
    return os.path.exists(path) and not os.path.isfile(path)


def renew(path: str, seconds: float) -> bool:
    """Sets the time of a file or folder to now if it differs by more than `seconds`: what was used is evicted last.

    Returns whether it did. If that fails, the file is evicted earlier.
    """
    try:
        # abs: a time far in the future was set by a wrong clock, and would keep the file for ever.
        status = os.lstat(path)
        if abs(time.time() - status.st_mtime) > seconds and not is_shared(status):
            os.utime(path, follow_symlinks=False)
            return True
    except OSError:
        return False
    return False


def read_file(path: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Returns the bytes of a file of the store. Raises OSError, or ValueError for what opforge cannot have written."""
    return remembered_values.read_file(path, max_bytes)


def open_regular(path: str) -> IO[bytes]:
    """Opens a regular file for reading. Raises OSError, or ValueError for anything else."""
    # Without O_NONBLOCK a pipe in the file's place would block for ever.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError("it is not a regular file")
    return open(handle, "rb")


def read_json(path: str) -> Any:
    """Returns the value in a JSON file of the store. Raises OSError, ValueError or RecursionError."""
    return json.loads(read_file(path, MAX_RECORD_BYTES))


def stamp_of(path: str) -> list[int]:
    """Returns a file's stamp, which changes with the file: its size, times and inode. Raises OSError."""
    status = os.lstat(path)
    inode = remembered_values.inode_of(path, status, follows=False)
    # A folder's size and times change with the names in it: a file that was added is seen by that.
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, inode]


def changed_path(folder: str, stamps: Mapping[str, Any]) -> str:
    """Returns the path below a folder of the first file or folder whose stamp is another; empty if none is."""
    lstat = os.lstat
    for path, stamp in stamps.items():
        place = f"{folder}/{path}" if path else folder
        try:
            status = lstat(place)
        except OSError:
            return path or folder
        inode = remembered_values.inode_of(place, status, follows=False)
        if [status.st_size, status.st_mtime_ns, status.st_ctime_ns, inode] != stamp:
            return path or folder
    return ""


def discard(path: str) -> None:
    """Removes a file, a link or a folder: by a rename first, so that nobody reads a part of it. Raises OSError.

    Nothing happens if it is gone: another process was first.
    """
    gone = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    try:
        os.rename(path, gone)
        if stat.S_ISDIR(os.lstat(gone).st_mode):
            shutil.rmtree(gone, ignore_errors=True)
        else:
            os.unlink(gone)
    except FileNotFoundError:
        return


def size_of(folder: str) -> int:
    """Returns the bytes of all files below a folder."""
    total = 0
    for parent, _folders, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue  # another process is removing it
    return total
