"""Removes files that nothing names, while others publish: each removal is announced in the store first.

    v1/removals/SHA256.json     {"state": "announced" | "removing" | "needed", "token": ...}

These files are blobs, and statements with files of their own; both are named by their SHA-256. `remote gc` announces,
reads all topics again, changes "announced" to "removing", removes the file, and removes the note. A publisher whose
file was in the store already writes its topic, and then looks at the note:

- There is none. Whoever announces from now on reads the topic. The file may be gone: then it is sent again.
- "announced": it is changed to "needed", so that the file stays.
- "removing": the publisher waits until the note is gone, and sends the file again.

A file that a publisher has just sent is newer than what is removed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator

from opforge.cache import schema
from opforge.cache.schema import TEXT, FormatError
from opforge.errors import StoreError

from .stores.protocol import ListedObject, ObjectStore, StoredObject

PREFIX = "v1/removals/"
ANNOUNCED, REMOVING, NEEDED = "announced", "removing", "needed"
NOTE = schema.record({"state": schema.choice(ANNOUNCED, REMOVING, NEEDED), "token": TEXT})
MAX_BYTES = 4096
STALE_SECONDS = 3600.0
"""How old a note is whose `remote gc` has ended before it removed it."""
STEP_SECONDS = 30.0
"""A file is removed so soon after its note says so, or not at all."""
WAIT_SECONDS, PAUSE_SECONDS = 120.0, 0.2
"""How long a publisher waits for a removal before it takes its process as ended: until a request has failed too."""


def note_of(name: str) -> str:
    """Returns the name of the note that announces the removal of a file."""
    return f"{PREFIX}{os.path.basename(name)}.json"


def _note(state: str) -> bytes:
    # The token makes each note another version: a store may compare contents.
    return json.dumps({"state": state, "token": os.urandom(8).hex()}).encode()


def _state(stored: StoredObject) -> str:
    try:
        return str(schema.parse(stored.data, NOTE)["state"])
    except FormatError:
        return ""


class Uploads:
    """Files that are sent to a store before the topic that names them, and looked at once more after it."""

    def __init__(self, store: ObjectStore) -> None:
        """Begins without a file."""
        self._store = store
        self._present: list[tuple[str, Callable[[], bool]]] = []

    def send(self, name: str, send: Callable[[], bool]) -> bool:
        """Sends a file by `send`, which returns whether the store had none of this name; returns that."""
        is_sent = send()
        if not is_sent:
            self._present.append((name, send))
        return is_sent

    def keep(self) -> None:
        """Makes sure that what was there already stays. What names it must have been written before.

        Raises StoreError, and what sending a file again raises.
        """
        for name, send in self._present:
            keep(self._store, name, send)


def keep(store: ObjectStore, name: str, send: Callable[[], object]) -> None:
    """Makes sure that a file stays that was in the store already. What names it must have been written before.

    `send` puts it there again. Raises StoreError.
    """
    note, end = note_of(name), time.monotonic() + WAIT_SECONDS
    while True:
        stored = store.get(note, MAX_BYTES)
        state = _state(stored) if stored else ""
        if state == REMOVING and time.monotonic() < end:
            time.sleep(PAUSE_SECONDS)
            continue
        if stored and state != NEEDED and not store.put_if_unchanged(note, _note(NEEDED), stored.version):
            continue
        if not store.exists(name):
            send()
        return


def remove(store: ObjectStore, unused: Iterable[str], named: Callable[[], set[str]], now: float) -> Iterator[str]:
    """Removes files unless something names them by now, and yields those that were removed.

    `named` reads what the store's topics and statements name. `now` is by the store's clock. Raises StoreError.
    """
    notes = {listed.name: listed for listed in store.list(PREFIX)}
    announced = dict[str, str]()
    for name in unused:
        if version := _announce(store, note_of(name), notes.pop(note_of(name), None), now):
            announced[name] = version
    needed = named() if announced else set()
    for name, version in announced.items():
        if name not in needed and store.put_if_unchanged(note_of(name), _note(REMOVING), version):
            began = time.monotonic()
            _remove_within(store, name, began + STEP_SECONDS)
            yield name
        store.delete(note_of(name))  # without it, no other process that announced the same removes the file
    for listed in notes.values():
        if now - listed.modified > STALE_SECONDS:
            store.delete(listed.name)


def _announce(store: ObjectStore, note: str, before: ListedObject | None, now: float) -> str:
    """Returns the version of the note that announces a removal; "" if another process is about to remove the file."""
    content = _note(ANNOUNCED)
    if not store.put_if_absent(note, content):
        stale = store.get(note, MAX_BYTES) if before and now - before.modified > STALE_SECONDS else None
        if stale is None or not store.put_if_unchanged(note, content, stale.version):
            return ""
    stored = store.get(note, MAX_BYTES)
    return stored.version if stored and stored.data == content else ""


def _remove_within(store: ObjectStore, name: str, end: float) -> None:
    """Removes a file, unless this process was stopped for so long that a publisher may rely on the file again."""
    if time.monotonic() > end:
        hint = "Run it again, on a machine that does not sleep"
        raise StoreError(store.url, f"remove {name}", "this process did not run for a while", hint)
    store.delete(name)
