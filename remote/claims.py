"""Claims: one build of an op in the whole cluster. A claim only saves work; without it the op is built twice.

    v1/claims/KEY.json     KEY stands for the description, the exact target and whether the library is portable

The owner raises a counter every ten seconds, and writes how far its build is. A waiter that has seen no change for
thirty seconds, by its own clock, takes the claim over, and so does one that has seen no progress for two minutes. When
the library is published the claim is removed. If the build or the publication failed it says so, and those who wait
build for themselves.
"""

from __future__ import annotations

import json
import logging
import os
import random
import socket
import threading
import time
from typing import Any

from opforge.builders.run import ninja
from opforge.cache import schema
from opforge.cache.keys import key_of
from opforge.cache.schema import TEXT, FormatError
from opforge.errors import RemoteError
from opforge.errors.base import printable

from .stores.protocol import ObjectStore, StoredObject

log = logging.getLogger("opforge")
RENEW_SECONDS = 10.0
VOID_SECONDS = 30.0
"""How long a claim may stay unchanged."""
STALLED_SECONDS = 120.0
"""How long a claim may be renewed without progress of the build."""
MAX_WAIT_SECONDS = 1800.0
"""How long a node waits for others, unless OPFORGE_LOCK_TIMEOUT says otherwise."""
FIRST_PAUSE, MAX_PAUSE, GROWTH = 1.0, 10.0, 1.3
"""Seconds between two looks at another's claim. They grow, and each is shortened at random by up to a third: a thousand
nodes must not be a thousand requests a second."""
NOTICE_SECONDS = 2.0
CLAIM = schema.record(
    {"who": TEXT, "count": schema.whole(), "state": schema.choice("building", "failed"), "progress": schema.whole()}
)
"""A claim, as its file holds it."""
MAX_BYTES = 4096


def name_of(*identity: object) -> str:
    """Returns the name of the claim for what is built."""
    return f"v1/claims/{key_of([str(part) for part in identity])}.json"


class Claim:
    """A claim of this process, renewed by a thread until it ends."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        """Prepares a claim; `take` makes it this process's."""
        self._store, self.name, self._count = store, name, 0
        self._who = f"process {os.getpid()} on {socket.gethostname()}"
        self._ended = threading.Event()

    def _content(self, state: str) -> bytes:
        fields = {"who": self._who, "count": self._count, "state": state, "progress": ninja.progress()}
        return json.dumps(fields).encode()

    def take(self, before: StoredObject | None) -> bool:
        """Puts the claim in the place of what was there; returns False if another was quicker. Raises StoreError."""
        content = self._content("building")
        if before is None:
            is_taken = self._store.put_if_absent(self.name, content)
        else:
            is_taken = self._store.put_if_unchanged(self.name, content, before.version)
        if is_taken:
            threading.Thread(target=self._renew, name="opforge-claim", daemon=True).start()
        return is_taken

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            try:
                self._count += 1
                if self._put("building") is None:
                    return  # another has taken it over
            except RemoteError as error:
                log.debug("the claim %s was not renewed: %s", self.name, error)

    def _put(self, state: str) -> bool | None:
        """Writes the claim's state. Returns False if it changed meanwhile, None if it is not this process's any more.

        Raises StoreError.
        """
        stored = self._store.get(self.name, MAX_BYTES)
        if stored is None or self._fields(stored).get("who") != self._who:
            return None
        return self._store.put_if_unchanged(self.name, self._content(state), stored.version)

    def end(self, is_published: bool) -> None:
        """Removes the claim, or lets those who wait know that they have to build. Raises nothing."""
        self._ended.set()
        try:
            if is_published:
                self._store.delete(self.name)
            elif self._put("failed") is False:
                self._put("failed")  # the renewal that was under way came first; there is none after it
        except (RemoteError, OSError) as error:
            log.debug("the claim %s was not ended: %s", self.name, error)

    @staticmethod
    def _fields(stored: StoredObject) -> dict[str, Any]:
        try:
            fields: dict[str, Any] = schema.parse(stored.data, CLAIM)
            return fields
        except FormatError:
            return {}

    def wait(self, op: str, limit: float) -> Claim | None:
        """Takes the claim, or waits at most `limit` seconds for owners whose builds make progress.

        Returns the claim if it is taken. None if its owner has ended: then there is an offer, or each builds for
        itself. Raises StoreError.
        """
        began = changed = advanced = noticed = time.monotonic()
        seen, pause, is_first, progress = b"", FIRST_PAUSE, True, None
        while True:
            stored = self._store.get(self.name, MAX_BYTES)
            now = time.monotonic()
            if stored and stored.data != seen:
                seen, changed = stored.data, now
            fields = self._fields(stored) if stored else {}
            state, before = fields.get("state"), progress
            progress = (fields.get("who"), fields.get("progress"))
            if progress != before:
                advanced = now
            if not is_first and (stored is None or state == "failed"):
                return None
            is_stalled = now - changed > VOID_SECONDS or now - advanced > STALLED_SECONDS
            if stored is None or state == "failed" or is_stalled:
                if self.take(stored):
                    return self
                is_first = False
                continue  # another was quicker
            if now - began > limit:
                text = "%s: it is built here too: %s has not published it within %.0f s"
                log.warning(text, op, _owner(stored), limit)
                return None
            if now - noticed > NOTICE_SECONDS:
                noticed = float("inf")
                log.warning("%s: waiting for %s, which builds it", op, _owner(stored))
            is_first = False
            time.sleep(pause * random.uniform(0.67, 1.0))  # noqa: S311 - no secret
            pause = min(MAX_PAUSE, pause * GROWTH)


def _owner(stored: StoredObject) -> str:
    return printable(str(Claim._fields(stored).get("who") or "another machine")[:200])
