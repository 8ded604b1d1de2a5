"""Folders and whole files, as the store makes, writes and reads them."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Mapping
from typing import Any

from .disk import SECOND_NS, image_inode

MAX_FILE_BYTES = 64 << 20
"""No other file of the store is larger."""
MAX_RECORD_BYTES = 8 << 20
"""No JSON file of the store is larger: a build that read ten thousand files takes 2 MB. In memory, the values of
damaged JSON take up to 25 times as much."""

NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
"""What fsync reports where the file system has none."""
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError)
"""What reading a damaged file and using its fields can raise: others may have written to the file."""
json.loads(b"{}")  # sets the parser up, which takes as long as parsing twenty records: not when an op is loaded


def make_folder(path: str) -> None:
    """Makes a folder and its parents for this user alone, whatever the umask.

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
            os.mkdir(folder, 0o700)
            if os.stat(folder).st_mode & 0o700 != 0o700:
                os.chmod(folder, 0o700)  # a umask such as 0277 denies it to its owner
        except FileExistsError:
            if not os.path.isdir(folder):
                raise


def can_write(folder: str) -> bool:
    """Returns whether this process may make files in a folder, or may make the folder if it is missing."""
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    effective = os.access in os.supports_effective_ids
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK, effective_ids=effective)


def fsync(handle: int) -> None:
    """Writes a file to the disk, or a folder's names, where the file system can. Raises OSError."""
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise


def temp_path(path: str) -> str:
    """Returns a path beside `path` that nothing else uses, for writing it before a rename."""
    return f"{path}.{os.getpid()}.{os.urandom(4).hex()}.tmp"


def is_temp_name(name: str) -> bool:
    """Returns whether a file or folder has a name that `temp_path` makes: only such a one may be swept."""
    if not name.endswith(".tmp"):
        return False
    stem, _, digits = name.removesuffix(".tmp").rpartition(".")
    writer = stem.rpartition(".")[2]
    is_hex = len(digits) == 8 and all(digit in "0123456789abcdef" for digit in digits)
    return is_hex and writer.isdecimal() and len(writer) < len(stem)


def write_file(path: str, data: bytes, mode: int = 0o600) -> None:
    """Writes a whole file by one rename, by default readable by this user alone. No reader ever sees a part of it."""
    temporary = temp_path(path)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            if mode != 0o600 or os.fstat(handle).st_mode & 0o600 != 0o600:
                os.fchmod(handle, mode)  # whatever the umask
            left = memoryview(data)
            while left:
                left = left[os.write(handle, left) :]
        finally:
            os.close(handle)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def is_special(path: str) -> bool:
    """Returns whether a path is a device or a pipe, or leads to a stream of this process as /dev/stdout does.

    A file must not be put in its place.
    """
    if os.path.islink(path) and os.readlink(path).startswith("/proc/"):
        return True
    return os.path.exists(path) and not os.path.isfile(path)


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
    """Returns the bytes of a file of the store. Raises OSError, or ValueError for what opforge cannot have written.

    Anything may have been put in the file's place. A pipe does not block, a device or a huge sparse file is not read.
    Four system calls: a file object makes nine, which a hit would notice.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
            raise ValueError(f"{path} is not a regular file of at most {max_bytes} bytes")
        return os.read(handle, status.st_size)
    finally:
        os.close(handle)


def read_json(path: str) -> Any:
    """Returns the value in a JSON file of the store. Raises OSError, ValueError or RecursionError."""
    return json.loads(read_file(path, MAX_RECORD_BYTES))


def stamp_of(path: str) -> list[int]:
    """Returns what changes with a file: its size, times and inode. Raises OSError."""
    status = os.lstat(path)
    inode = status.st_ino if status.st_ctime_ns % SECOND_NS else image_inode(path, status)
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
        inode = status.st_ino if status.st_ctime_ns % SECOND_NS else image_inode(place, status)
        if [status.st_size, status.st_mtime_ns, status.st_ctime_ns, inode] != stamp:
            return path or folder
    return ""


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
