"""The lock of one object in a folder: a file `NAME.lock` that link(2) makes, which is atomic on NFS too.

A lock is held for milliseconds. If it has not changed for 30 s by the clock of a process that waits, its owner was
killed, and the lock is void. An owner that was only stopped finds out, before it replaces the object, that it no longer
holds the lock.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from opforge.errors.base import printable
from opforge.remote.stores.pauses import pause
from opforge.remote.stores.protocol import LOCK_SUFFIX

from . import tree

VOID_SECONDS = 30.0
MAX_WAIT_FACTOR = 2.0
"""A process waits this many times as long as it takes for a lock to become void: others may be quicker again."""
MAX_PAUSE_SECONDS = 0.1
_MAX_BYTES = 4096
MAX_SHOWN = 200
"""Bytes of what a lock says of its owner that a message shows: others have written it."""


class LockWaitError(Exception):
    """Other processes held the lock for too long; the message says which one held it last."""


class FolderLock(NamedTuple):
    """A lock that this process has taken."""

    parent: int
    name: str
    state: bytes
    expires: float

    def is_held(self) -> bool:
        """Returns whether no other process can have taken the lock as void."""
        return time.monotonic() < self.expires and _state(self.parent, self.name) == self.state


@contextmanager
def hold(root: str, parent: int, name: str, void_seconds: float) -> Iterator[FolderLock]:
    """Holds the lock of the object `name` in the folder `parent`. Raises LockWaitError or OSError."""
    lock_name = name + LOCK_SUFFIX
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "token": os.urandom(16).hex()}
    with tree.staged(root, json.dumps(owner).encode()) as staging:
        _wait(staging, parent, lock_name, void_seconds)
        # From here others count the seconds until the lock is void. Half of them are left as a margin.
        expires = time.monotonic() + void_seconds / 2
    state = _state(parent, lock_name)
    lock = FolderLock(parent, lock_name, state or b"", expires)
    try:
        yield lock
    finally:
        if state is not None and _state(parent, lock_name) == state:
            os.unlink(lock_name, dir_fd=parent)


def _wait(staging: tuple[int, str], parent: int, name: str, void_seconds: float) -> None:
    began = since = time.monotonic()
    seen: bytes | None = None
    seconds = 0.002
    while not tree.link(staging, parent, name):
        state = _state(parent, name)
        now = time.monotonic()
        if state != seen:
            seen, since = state, now
        elif state is not None and now - since >= void_seconds:
            _remove_void(staging[0], parent, name, state)
            continue
        if now - began > MAX_WAIT_FACTOR * void_seconds:
            owner = (seen or b"").partition(b" ")[2][:MAX_SHOWN].decode("utf-8", "replace")
            raise LockWaitError(printable(owner))
        pause(seconds / 2, seconds)
        seconds = min(MAX_PAUSE_SECONDS, seconds * 1.5)


def _state(parent: int, name: str) -> bytes | None:
    """Returns the identity of a lock: its inode and its owner's text. None if there is no lock.

    A WebDAV server that publishes to the same folder makes a folder as its lock.
    """
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            return b"%d %d" % (status.st_ino, status.st_mtime_ns)
        handle, status = tree.open_file(parent, name)
    except FileNotFoundError:
        return None
    try:
        return b"%d %s" % (status.st_ino, os.read(handle, _MAX_BYTES))
    finally:
        os.close(handle)


def _remove_void(incoming: int, parent: int, name: str, state: bytes) -> None:
    """Removes a lock that is void: only the rename of exactly this lock counts, as others may remove it too."""
    aside = f"void.{os.getpid()}.{os.urandom(8).hex()}"
    try:
        os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=incoming)
    except FileNotFoundError:
        return  # another process removed it
    if _state(incoming, aside) != state:
        # It is the lock of a process that took it in between: it gets its name back, unless there is a third lock. Its
        # owner then finds that it does not hold the lock.
        with suppress(OSError):
            os.link(aside, name, src_dir_fd=incoming, dst_dir_fd=parent)
    try:
        os.unlink(aside, dir_fd=incoming)
    except OSError:
        os.rmdir(aside, dir_fd=incoming)
