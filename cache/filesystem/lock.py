"""One builder at a time for a plan. A lock only saves work: what is published is whole with or without it."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING

from opforge.cache.layout import write_file
from opforge.errors import LockTimeoutError
from opforge.events import emit

if TYPE_CHECKING:
    import filelock

log = logging.getLogger("opforge.cache")
FIRST_NOTICE, NEXT_NOTICE = 2.0, 15.0
POLL, LONGEST_POLL = 0.02, 0.1
"""Seconds between two looks at whether what is waited for is there: more the longer it takes, for sixty who wait are
not to keep the builder from its processor."""
RETRY, LONGEST_RETRY = 0.1, 0.25
"""Seconds between two attempts at the lock itself, which cost more: so soon after its death a builder is replaced."""


class Turn(Enum):
    """How a wait for a lock ended."""

    FIRST = "it was free"
    WAITED = "another held it, and it is held now"
    READY = "it is not held, for what was waited for may be there"


@contextmanager
def held(
    path: str,
    label: str,
    timeout: float | None,
    ready: Callable[[], bool] | None = None,
    since: float | None = None,
) -> Iterator[Turn]:
    """Hold the lock at `path`; yields how it was come by.

    `ready` is asked while another holds it: once it says so, the wait is over without the lock, so that many who wait
    for one thing need not pass the lock from hand to hand. The kernel lets a dead owner's lock go, so a wait ends with
    its owner. After two seconds, and then at intervals, the wait says whom it is for. Where no lock can be had at all,
    that is said, and nobody is kept. Raises LockTimeoutError after `timeout` seconds, counted from `since` (of the
    monotonic clock) where an earlier wait goes on.
    """
    import filelock

    lock = filelock.FileLock(path, mode=0o600)
    try:
        lock.acquire(timeout=0)
        turn = Turn.FIRST
    except filelock.Timeout:
        turn = _wait(lock, path, label, timeout, ready, time.monotonic() if since is None else since)
    except OSError as error:  # NFS without its lock service, or a file that a `sudo` has left
        log.warning("%s: no lock at %s (%s): others may build the same", label, path, error.strerror)
        turn = Turn.FIRST
    try:
        if turn is not Turn.READY:
            _sign(path, label)
        yield turn
    finally:
        lock.release()


def _wait(
    lock: filelock.BaseFileLock,
    path: str,
    label: str,
    timeout: float | None,
    ready: Callable[[], bool] | None,
    began: float,
) -> Turn:
    import filelock

    noticed, tried, turn = 0.0, 0.0, None
    while turn is None:
        elapsed = time.monotonic() - began
        if timeout is not None and elapsed >= timeout:
            raise LockTimeoutError(label, timeout, owner(path))
        if elapsed >= FIRST_NOTICE and (not noticed or elapsed - noticed >= NEXT_NOTICE):
            noticed = elapsed
            log.warning("%s: waiting for %s", label, owner(path))
        time.sleep(min(LONGEST_POLL, max(POLL, elapsed / 20)))
        if ready is not None and ready():
            turn = Turn.READY
        elif elapsed - tried >= min(LONGEST_RETRY, max(RETRY, elapsed / 10)) or ready is None:
            tried = elapsed
            try:
                lock.acquire(timeout=0)
                turn = Turn.WAITED
            except filelock.Timeout:
                continue
    emit("wait", op=label, seconds=round(time.monotonic() - began, 6), lock=path)
    return turn


def _sign(path: str, label: str) -> None:
    signature = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time(), "label": label}
    try:
        write_file(path + ".owner", json.dumps(signature).encode())
    except OSError:
        log.debug("the lock %s could not be signed", path)


def progress(path: str, text: str) -> None:
    """Tell the waiters how far the build is ("3 of 5, log ...")."""
    try:
        with open(path + ".owner", "rb") as file:
            signature = json.load(file)
        signature["at"] = text
        write_file(path + ".owner", json.dumps(signature).encode())
    except (OSError, ValueError):
        log.debug("progress at the lock %s could not be noted", path)


def owner(path: str) -> str:
    """Who holds the lock, in words."""
    try:
        with open(path + ".owner", "rb") as file:
            signature = json.load(file)
        since = time.strftime("%H:%M:%S", time.localtime(signature["since"]))
        at = f", {signature['at']}" if signature.get("at") else ""
        return f"process {signature['pid']} on {signature['host']}, which has been building since {since}{at}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process that is building it"
