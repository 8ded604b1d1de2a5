"""The lock of one object on a WebDAV server: a collection `NAME.lock`.

Apache's mod_dav honours preconditions, but checks them before it reads the body: of two writers at once, both can pass.
Its LOCK forgets locks if several requests come at once. MKCOL is one mkdir(2).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from opforge.errors import StoreError
from opforge.remote.stores.pauses import pause
from opforge.remote.stores.protocol import LOCK_SUFFIX

from .client import Answer, Client, Request

MAX_STATE_BYTES = 64 << 10
MAX_WAIT_FACTOR = 2.0
MAX_PAUSE_SECONDS = 0.25
MAX_FORBIDDEN = 5
"""A collection that cannot be made is refused so often in a row."""
_IDENTITY = re.compile(rb"<[^<>]*(?:getlastmodified|getetag)[^<>/]*>(?:W/)?([^<>]*)<")
"""A lock's time and its ETag, which is weak only in the first second. A rename changes neither."""


class DavLock:
    """A lock that this process has taken. Others take it as void once they have seen no change for `void` seconds."""

    def __init__(self, expires: float) -> None:
        self.expires = expires

    def is_held(self) -> bool:
        """Returns whether no other process can have taken the lock as void; half of the time is left as a margin."""
        return time.monotonic() < self.expires


@contextmanager
def hold(client: Client, name: str) -> Iterator[DavLock]:
    """Holds the lock of an object. Raises StoreError if others hold it for too long."""
    lock_name = name + LOCK_SUFFIX
    lock = DavLock(_wait(client, lock_name) + client.timing.void / 2)
    try:
        yield lock
    finally:
        if lock.is_held():
            with suppress(StoreError):  # it becomes void
                _status(client, "DELETE", lock_name)


def make_collections(client: Client, name: str) -> None:
    """Makes the collections in which an object lies."""
    parts = name.split("/")[:-1]
    for count in range(len(parts) + 1):
        status = _make(client, "/".join(parts[:count]) + "/" if count else "")
        if status not in (200, 201, 405, 301, 302):  # 405, or a redirect to the name with a slash: it is there
            raise client.refusal(f"make the folders of {name}", status)


def _wait(client: Client, lock_name: str) -> float:
    """Waits for the lock and takes it. Returns the time before the request that took it."""
    began = since = time.monotonic()
    seen, seconds, has_collections = b"", 0.005, False
    void = client.timing.void
    while True:
        asked_at = time.monotonic()
        status = _make(client, lock_name)
        if status in (200, 201):
            return asked_at
        if status in (404, 409) and not has_collections:
            has_collections = True
            make_collections(client, lock_name)
            continue
        if status not in (405, 409, 423):
            raise client.refusal(f"lock {lock_name}", status)
        now = time.monotonic()
        if now - began > MAX_WAIT_FACTOR * void:
            hint = "Try again when fewer processes publish"
            raise StoreError(client.url, f"lock {lock_name}", "other processes kept its lock", hint)
        state = _state(client, lock_name)
        if state != seen:
            seen, since = state, now
        elif state and now - since >= void:
            _remove_void(client, lock_name, state)
        pause(seconds / 2, seconds)
        seconds = min(MAX_PAUSE_SECONDS, seconds * 1.5)


def _state(client: Client, lock_name: str) -> bytes:
    """Returns the identity of a lock: its time of modification. Empty if there is no lock."""

    def read(answer: Answer) -> bytes:
        if answer.status == 404:
            return b""
        if answer.status != 207:
            raise client.refusal(f"look at {lock_name}", answer.status)
        answer.paced.allow(MAX_STATE_BYTES)
        return b" ".join([b"lock", *_IDENTITY.findall(answer.response.read(MAX_STATE_BYTES))])

    return client.exchange(Request(f"look at {lock_name}", "PROPFIND", lock_name, lambda: {"Depth": "0"}), read)


def _remove_void(client: Client, lock_name: str, state: bytes) -> None:
    """Removes a lock that is void: only the move of exactly this lock counts, as others may remove it too."""
    aside = f"{lock_name.removesuffix(LOCK_SUFFIX)}.{os.urandom(8).hex()}{LOCK_SUFFIX}"
    if not _move(client, lock_name, aside):
        return
    if _state(client, aside) == state or not _move(client, aside, lock_name):
        _status(client, "DELETE", aside)


def _move(client: Client, source: str, target: str) -> bool:
    headers = {"Destination": f"{client.address}{client.path(target)}", "Overwrite": "F"}
    return _status(client, "MOVE", source, headers) in (200, 201, 204)


def _make(client: Client, name: str) -> int:
    """Makes a collection and returns the status. Of two requests at once, Apache answers 403 to the second, not 405."""
    status = 403
    for _attempt in range(MAX_FORBIDDEN):
        if status != 403:
            break
        status = _status(client, "MKCOL", name)
    return status


def _status(client: Client, method: str, name: str, headers: dict[str, str] | None = None) -> int:
    request = Request(f"{method} {name}", method, name, lambda: headers or {})
    return client.exchange(request, lambda answer: answer.status)
