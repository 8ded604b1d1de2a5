"""One builder of a plan at a time. A lock only saves work: published entries are complete with or without it."""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import TYPE_CHECKING

from opforge.errors import LockTimeoutError
from opforge.foundation.events import emit
from opforge.foundation.files import read_json, write_file
from opforge.foundation.remembered_values import UNREADABLE

if TYPE_CHECKING:
    import filelock

log = logging.getLogger("opforge.cache")
FIRST_NOTICE, NEXT_NOTICE = 2.0, 15.0
"""Seconds until a wait is first logged, and between two further messages."""
POLL_SECONDS, MAX_POLL_SECONDS = 0.02, 0.1
"""Seconds between two calls of `ready`. They grow with the wait: sixty waiters must not slow the builder down."""
RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 0.25
"""Seconds between two attempts at the lock, which cost more than `ready`. A dead builder is replaced this soon."""

_held: set[int] = set()
"""The descriptors of the locks that this process has taken without filelock."""


class LockResult(Enum):
    """How a wait for a lock ended."""

    FREE = "no process held it, and it is held now"
    WAITED = "another process held it, and it is held now"
    READY = "it is not held: `ready` returned True"


@contextmanager
def acquire(
    path: str,
    label: str,
    timeout: float | None,
    ready: Callable[[], bool] | None = None,
    since: float | None = None,
) -> Iterator[LockResult]:
    """Holds the lock at `path`; yields how the wait for it ended.

    The kernel releases a dead owner's lock. After two seconds, and then at intervals, a warning says who holds it. If
    the file system has no locks, a warning says so and the block runs without one.

    Args:
        path: The lock's file.
        label: What is being built, for messages.
        timeout: Seconds to wait; None waits as long as the owner lives.
        ready: Called while another process holds the lock. Once it returns True, the wait ends without the lock: many
            waiters for one result then need not take the lock one after the other.
        since: The monotonic time from which `timeout` counts, if this continues an earlier wait.

    Raises:
        LockTimeoutError: Another process held the lock for longer than `timeout`.
    """
    handle = _free(path)
    if handle is None:
        with _acquire_by_waiting(path, label, timeout, ready, since) as result:
            yield result
        return
    try:
        _write_owner(path, label)
        yield LockResult.FREE
    finally:
        if handle in _held:  # not in a forked child, which has closed it
            _held.remove(handle)
            os.close(handle)


@contextmanager
def _acquire_by_waiting(
    path: str, label: str, timeout: float | None, ready: Callable[[], bool] | None, since: float | None
) -> Iterator[LockResult]:
    import filelock  # takes 7 to 10 ms: a lock that nobody holds is taken without it

    # Without flock (Lustre without -o flock) filelock would wait for a marker file, which stays if its owner is killed.
    lock = filelock.FileLock(path, mode=0o600, fallback_to_soft=False)
    try:
        result = None
        with suppress(filelock.Timeout):
            lock.acquire(timeout=0)
            result = LockResult.FREE
        if result is None:  # out of a handler, whose error would be printed with an interrupt of the wait
            result = _wait(lock, path, label, timeout, ready, time.monotonic() if since is None else since)
    except LockTimeoutError:
        raise
    except OSError as error:  # no flock, NFS without its lock service, or a lock file that sudo has left
        log.warning("%s: cannot lock %s (%s): other processes may build the same op", label, path, error.strerror)
        result = LockResult.FREE
    try:
        if result is not LockResult.READY:
            _write_owner(path, label)
        yield result
    finally:
        lock.release()


def _free(path: str) -> int | None:
    """Returns the descriptor of a lock that nobody held; None if somebody holds it, or it cannot be locked."""
    import fcntl

    _remove_link(path)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return None  # `acquire` reports that
    _held.add(handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_free = os.fstat(handle).st_nlink > 0  # otherwise `remove` was faster: the next user makes a new file
    except OSError:
        is_free = False
    if not is_free:
        _held.remove(handle)
        os.close(handle)
    return handle if is_free else None


def _let_go() -> None:
    """Closes the parent's locks in a forked child, which would hold them when the parent has been killed."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def _remove_link(path: str) -> None:
    """Removes a link in the lock's place: to lock what it leads to would change the times of another's file."""
    with suppress(OSError):  # there is no such file yet, or it cannot be removed; `acquire` reports that
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink > 1):
            os.unlink(path)


def _wait(
    lock: filelock.BaseFileLock,
    path: str,
    label: str,
    timeout: float | None,
    ready: Callable[[], bool] | None,
    began: float,
) -> LockResult:
    import filelock

    noticed, tried, result = 0.0, 0.0, None
    while result is None:
        elapsed = time.monotonic() - began
        if timeout is not None and elapsed >= timeout:
            raise LockTimeoutError(label, timeout, owner(path))
        if elapsed >= FIRST_NOTICE and (not noticed or elapsed - noticed >= NEXT_NOTICE):
            noticed = elapsed
            log.warning("%s: waiting for %s", label, owner(path))
        time.sleep(min(MAX_POLL_SECONDS, max(POLL_SECONDS, elapsed / 20)))
        if ready is not None and ready():
            result = LockResult.READY
        elif elapsed - tried >= min(MAX_RETRY_SECONDS, max(RETRY_SECONDS, elapsed / 10)) or ready is None:
            tried = elapsed
            try:
                lock.acquire(timeout=0)
                result = LockResult.WAITED
            except filelock.Timeout:
                continue
    emit("wait", op=label, seconds=round(time.monotonic() - began, 6), lock=path)
    return result


def remove(path: str) -> bool:
    """Removes a lock's file while holding the lock, so that no process is using it. The next user makes a new file.

    Returns False if another process holds it. Raises OSError.
    """
    if path.endswith(".owner"):
        os.unlink(path)
        return True
    import fcntl

    handle = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(handle)
        return False
    except OSError:
        log.debug("%s: this file system has no locks, so nobody holds it", path)
    try:
        os.unlink(path)
    finally:
        os.close(handle)
    return True


def _write_owner(path: str, label: str) -> None:
    fields = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time(), "label": label}
    try:
        write_file(path + ".owner", json.dumps(fields).encode())
    except OSError:
        log.debug("the owner of the lock %s could not be written", path)


def progress(path: str, text: str) -> None:
    """Tells waiters how far the build is, such as "3 of 5, log ..."."""
    try:
        fields = read_json(path + ".owner")
        fields["at"] = text
        write_file(path + ".owner", json.dumps(fields).encode())
    except UNREADABLE:  # below the schemas, and words for a waiter alone
        log.debug("the progress at the lock %s could not be written", path)


def owner(path: str) -> str:
    """Returns the holder of the lock in words."""
    try:
        fields = read_json(path + ".owner")
        since = time.strftime("%H:%M:%S", time.localtime(fields["since"]))
        at = f", {fields['at']}" if fields.get("at") else ""
        return f"process {fields['pid']} on {fields['host']}, which has been building since {since}{at}"
    except UNREADABLE:  # below the schemas, and words for a waiter alone
        return "another process that is building it"
