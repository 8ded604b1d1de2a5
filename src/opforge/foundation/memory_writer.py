"""Writes what one user's processes on one machine remember: see `memory.py`. A hit does not import it.

CACHE/opforge/machine/ID/lookups/NAME.json    what is remembered; also the releases of kernel packages: see
                                              packages/registry/kept_releases.py
CACHE/opforge/machine/ID/counts*              how often something was stored: see cache/maintenance/counts.py
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time

from opforge.foundation import memory
from opforge.foundation.memory import LOOKUPS as LOOKUPS
from opforge.foundation.memory import FlatStamps
from opforge.foundation.memory import folders as folders
from opforge.foundation.memory import is_private as is_private
from opforge.foundation.memory import kept_folders as kept_folders
from opforge.foundation.memory import reset as reset

MAX_LOOKUPS = 4096
"""How many look-ups are remembered. Above that the older half is removed."""
MAX_UNUSED_SECONDS = 90 * 24 * 3600.0
"""How long the memory of a machine that adds nothing to it is kept: each container may be a machine of its own."""
_TEMP = r"(?:\.[0-9]+\.[0-9a-f]{8}\.tmp)?"
_OWN_NAME = rf"(?:[0-9a-f]{{32}}|(?:remote-[a-z]+|release)-[0-9a-f]{{24,64}})\.json{_TEMP}"
"""Of a look-up, of what a remote answered, and of a release."""
_OWN_COUNTS = rf"counts[\w.-]*{_TEMP}"
COUNTS = "counts"
"""The file to which each process appends what it has counted, when it ends."""
MAX_COUNTS_BYTES = 256 << 10
"""The length of that file above which its lines are added up: see maintenance/counts.py. At 16 times that nothing more
is counted."""


def can_remember() -> bool:
    """Returns whether anything can be remembered here: a container may have no folder that can be written."""
    return any(can_write(f"{folder}/{LOOKUPS}") for folder in folders())


def is_in_use(store: str) -> bool:
    """Returns whether anything is remembered already, or there is a store. Otherwise only a build makes a folder."""
    return bool(kept_folders()) or os.path.isdir(store)


def remember(name: str, watched: FlatStamps, value: object, at_ns: int = 0, links: int = 0, folder: str = "") -> bool:
    """Remembers a value under a name as long as the stamps are the same. Returns whether it could be.

    Args:
        name: What decides the value and has no stamp, or a digest of that: see `memory.name_of`.
        watched: The files that it follows from. The stamps were taken before the value was found.
        value: The value, as JSON has it.
        at_ns: When the stamps were taken. Nothing is remembered of a file that had just been changed.
        links: Of so many of the first paths a link is not followed.
        folder: A folder of a store that can be written; by default this machine's. It is not made.
    """
    if watched.paths and watched.is_racy(at_ns):
        return False
    data = memory.written(name, watched, value, links)
    if not folder:
        return _keep(name, data)
    try:
        write_file(f"{folder}/{name}.json", data)
    except OSError:
        return False
    return True


def _keep(name: str, data: bytes) -> bool:
    """Writes what is remembered under this name. Returns whether it could be written anywhere."""
    for folder in folders():
        lookups = f"{folder}/{LOOKUPS}"
        try:
            if os.path.islink(os.path.dirname(folder)) or os.path.islink(folder):
                continue  # what is written there would lie elsewhere
            make_folder(lookups)
            if not is_private(lookups):
                continue
            write_file(f"{lookups}/{name}.json", data)
        except OSError:
            continue
        _bound(lookups)
        return True
    return False


def _bound(folder: str) -> None:
    """Removes the older half of the memory if there are too many."""
    try:
        names = [name for name in os.listdir(folder) if _is_own_name(name)]
        if len(names) <= MAX_LOOKUPS:
            return
        paths = sorted((os.path.join(folder, name) for name in names), key=lambda path: os.lstat(path).st_mtime_ns)
        for path in paths[: len(paths) // 2]:
            os.unlink(path)
    except OSError:
        return  # another process does the same


def remove_unused() -> None:
    """Removes the folders of machines that have remembered nothing for a long time, this one's excepted."""
    for folder in folders():
        machines = os.path.dirname(folder)
        try:
            names = os.listdir(machines) if is_private(machines) else []
        except OSError:
            continue  # there is none yet
        now = now_in(machines) if names else 0.0
        for name in names:
            lookups = os.path.join(machines, name, LOOKUPS)
            try:
                is_unused = now - os.lstat(lookups).st_mtime > MAX_UNUSED_SECONDS
            except OSError:
                continue  # not a machine's
            if is_unused and name != os.path.basename(folder) and not os.path.islink(os.path.dirname(lookups)):
                _remove_machine(os.path.dirname(lookups))


def _remove_machine(folder: str) -> None:
    """Removes what is remembered in the folder of a machine, and the folder if nothing else is in it."""
    try:
        for part, form in ((LOOKUPS, _OWN_NAME), ("", _OWN_COUNTS)):
            place = os.path.join(folder, part)
            for name in os.listdir(place):
                if re.fullmatch(form, name):
                    os.unlink(os.path.join(place, name))
            os.rmdir(place)
    except OSError:
        return  # it holds something else


def _is_own_name(name: str) -> bool:
    """Returns whether a file of the memory has a name that opforge makes: only such a one is removed."""
    return re.fullmatch(_OWN_NAME, name) is not None


def write_counts() -> None:
    """Appends what this process has counted, in one write: lines of several processes do not mix.

    Where nothing can be written, it is lost.
    """
    counts, now = dict(memory.counts), int(time.time())
    memory.counts.clear()
    lines = "".join(f"{json.dumps([now, store, amounts])}\n" for store, amounts in counts.items())
    for folder in folders() if lines else ():
        try:
            if os.path.islink(os.path.dirname(folder)):
                continue
            make_folder(folder)
            if not is_private(folder):
                continue
            handle = open_to_append(f"{folder}/{COUNTS}", os.O_CREAT)
        except OSError:
            continue
        try:
            if os.fstat(handle).st_size < 16 * MAX_COUNTS_BYTES:
                os.write(handle, lines.encode())
        except OSError:
            continue
        finally:
            os.close(handle)
        return


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


def temp_path(path: str) -> str:
    """Returns a path beside `path` that nothing else uses, for writing it before a rename."""
    return f"{path}.{os.getpid()}.{os.urandom(4).hex()}.tmp"


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
