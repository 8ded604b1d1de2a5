"""The folders of a root: their modes, who holds them, and how they are removed."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from opforge.foundation.files import make_folder

from .layout import Root

READABLE = 0o755
"""The mode of folders: an environment serves every user of the machine."""


def make_root(root: Root) -> None:
    """Makes the folders of a root that are missing, for every user of the machine to read. Raises OSError."""
    if not os.path.isdir(root.path):  # a link to a folder may be the root
        make_folder(root.path, READABLE)  # with a umask of 002 a group could write it, and nothing would be loaded
    for folder in (root.path, root.join()):
        make_readable(folder)


def make_readable(folder: str) -> None:
    """Makes a folder that every user can read. More rights stay: an administrator may let a group install."""
    if not os.path.isdir(folder):  # a link to a folder may be the root
        make_folder(folder)
    mode = stat.S_IMODE(os.stat(folder).st_mode)
    if mode & READABLE != READABLE:
        os.chmod(folder, mode | READABLE)


@contextmanager
def held(root: Root, alone: bool = False) -> Iterator[bool]:
    """Holds a root: installations share it. `alone` is for removing files; it yields False if another has it."""
    import fcntl

    path = root.join("locks", "root.lock")
    make_folder(os.path.dirname(path))
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH)
            is_held = True
        except BlockingIOError:
            is_held = False
        except OSError:  # there are no locks on this file system: an installation has a folder there meanwhile
            staging = root.join("staging")
            is_held = not alone or not os.path.isdir(staging) or not os.listdir(staging)
        yield is_held
    finally:
        os.close(handle)


def remove_folder(folder: str, last: str = "") -> None:
    """Removes a folder of ours, also a read-only one; of a link, the link. What is another user's stays.

    `last` is the file in it by which it is known to be ours: what a killed process has left is still known then.
    """
    if os.path.islink(folder):
        os.unlink(folder)
        return
    # What was installed is read-only, and a folder must be writable for its files to be removed.
    for parent, _folders, _files in os.walk(folder):
        with suppress(OSError):
            os.chmod(parent, 0o700)
    for entry in [*os.scandir(folder)] if last and os.path.isdir(folder) else ():
        if entry.name != last:
            with suppress(OSError):
                shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)
    shutil.rmtree(folder, ignore_errors=True)
