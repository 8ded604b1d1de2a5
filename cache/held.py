"""A private folder that this process holds open: nobody else can put another folder in the place of its name."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress

from opforge.foundation import file_owners


def hold(folder: str) -> str:
    """Opens a new, empty folder of this user's; returns a path that leads to it as long as this process lives.

    The path begins with /proc/self/fd. It leads there whatever becomes of the folder's name, also in the processes that
    inherit the descriptor: see `handles`. Raises OSError, also if the folder is not the one that was made.
    """
    # With O_NOATIME, only the owner may open it: in some user namespaces all files seem to belong to one user.
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_NOATIME", 0)
    handle = os.open(folder, flags)
    path = f"{file_owners.HELD}/{handle}"
    try:
        status = os.fstat(handle)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077 or os.listdir(handle):
            raise OSError(errno.EPERM, "Another user has put a folder in its place", folder)
        if not os.path.samestat(os.stat(path), status):
            raise OSError(errno.ENOENT, "/proc is not this process's", path)
    except BaseException:
        os.close(handle)
        raise
    file_owners.held[path] = status.st_dev, status.st_ino
    return path


def for_others(path: str) -> str:
    """Returns a path that leads to the same place in the processes that this one starts too, as long as it lives."""
    is_held = path.startswith(f"{file_owners.HELD}/")
    return f"/proc/{os.getpid()}{path.removeprefix('/proc/self')}" if is_held else path


def handles(path: str) -> tuple[int, ...]:
    """Returns the descriptors that another process must inherit to reach a path."""
    return tuple(
        int(folder[len(file_owners.HELD) + 1 :]) for folder in file_owners.held if path.startswith(f"{folder}/")
    )


def empty(path: str) -> None:
    """Removes the content of a folder that is held. Does nothing if its path may be another folder's by now."""
    if not file_owners.is_held(path):
        return
    for name in os.listdir(path):
        place = f"{path}/{name}"
        if os.path.isdir(place) and not os.path.islink(place):
            shutil.rmtree(place, ignore_errors=True)
        else:
            with suppress(OSError):
                os.unlink(place)


def let_go(path: str) -> None:
    """Closes a folder that is held: the path leads nowhere from now on."""
    if file_owners.is_held(path):  # otherwise the descriptor is another file's by now
        os.close(*handles(f"{path}/"))
    del file_owners.held[path]
