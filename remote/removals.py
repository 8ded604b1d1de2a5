"""Removes blobs that nothing names, while others publish: each removal is announced in the store first.

    v1/removals/SHA256.json     {"state": "announced" | "removing" | "needed", "token": ...}

`remote gc` announces, reads all offers and releases again, changes "announced" to "removing", removes the blob, and
removes the note. A publisher whose blob was in the store already writes its offer, and then looks at the note:

- There is none. Whoever announces from now on reads the offer. The blob may be gone: then it is sent again.
- "announced": it is changed to "needed", so that the blob stays.
- "removing": the publisher waits until the note is gone, and sends the blob again.

A blob that a publisher has just sent is newer than what is removed.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator

from opforge.cache.filesystem.files import UNREADABLE
from opforge.errors import StoreError

from .stores.protocol import Listed, ObjectStore, Stored

PREFIX = "v1/removals/"
ANNOUNCED, REMOVING, NEEDED = "announced", "removing", "needed"
MAX_BYTES = 4096
STALE_SECONDS = 3600.0
"""How old a note is whose `remote gc` has ended before it removed it."""
STEP_SECONDS = 30.0
"""A blob is removed so soon after its note says so, or not at all."""
WAIT_SECONDS, PAUSE_SECONDS = 120.0, 0.2
"""How long a publisher waits for a removal before it takes its process as ended: until a request has failed too."""
_BLOB = re.compile(r"v1/blobs/sha256/[0-9a-f]{2}/([0-9a-f]{64})")


def note_of(blob: str) -> str:
    """Returns the name of the note that announces the removal of a blob."""
    match = _BLOB.fullmatch(blob)
    return f"{PREFIX}{match[1] if match else os.path.basename(blob)}.json"


def _note(state: str) -> bytes:
    # The token makes each note another version: a store may compare contents.
    return json.dumps({"state": state, "token": os.urandom(8).hex()}).encode()


def _state(stored: Stored) -> str:
    try:
        return str(json.loads(stored.data)["state"])
    except UNREADABLE:
        return ""


def keep(store: ObjectStore, blob: str, send: Callable[[], object]) -> None:
    """Makes sure that a blob stays that was in the store already. What names it must have been written before.

    `send` puts it there again. Raises StoreError.
    """
    note, end = note_of(blob), time.monotonic() + WAIT_SECONDS
    while True:
        stored = store.get(note, MAX_BYTES)
        state = _state(stored) if stored else ""
        if state == REMOVING and time.monotonic() < end:
            time.sleep(PAUSE_SECONDS)
            continue
        if stored and state != NEEDED and not store.put_if_unchanged(note, _note(NEEDED), stored.version):
            continue
        if not store.exists(blob):
            send()
        return


def remove(store: ObjectStore, unused: Iterable[str], named: Callable[[], set[str]], now: float) -> Iterator[str]:
    """Removes blobs unless something names them by now, and yields those that were removed.

    `named` reads what the store's offers and releases name. `now` is by the store's clock. Raises StoreError.
    """
    notes = {listed.name: listed for listed in store.list(PREFIX)}
    announced = dict[str, str]()
    for blob in unused:
        if version := _announce(store, note_of(blob), notes.pop(note_of(blob), None), now):
            announced[blob] = version
    needed = named() if announced else set()
    for blob, version in announced.items():
        if blob not in needed and store.put_if_unchanged(note_of(blob), _note(REMOVING), version):
            began = time.monotonic()
            _remove_within(store, blob, began + STEP_SECONDS)
            yield blob
        store.delete(note_of(blob))  # without it, no other process that announced the same removes the blob
    for listed in notes.values():
        if now - listed.modified > STALE_SECONDS:
            store.delete(listed.name)


def _announce(store: ObjectStore, note: str, before: Listed | None, now: float) -> str:
    """Returns the version of the note that announces a removal; "" if another process is about to remove the blob."""
    content = _note(ANNOUNCED)
    if not store.put_if_absent(note, content):
        stale = store.get(note, MAX_BYTES) if before and now - before.modified > STALE_SECONDS else None
        if stale is None or not store.put_if_unchanged(note, content, stale.version):
            return ""
    stored = store.get(note, MAX_BYTES)
    return stored.version if stored and stored.data == content else ""


def _remove_within(store: ObjectStore, blob: str, end: float) -> None:
    """Removes a blob, unless this process was stopped for so long that a publisher may rely on the blob again."""
    if time.monotonic() > end:
        hint = "Run it again, on a machine that does not sleep"
        raise StoreError(store.url, f"remove {blob}", "this process did not run for a while", hint)
    store.delete(blob)
