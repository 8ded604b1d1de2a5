"""One run on a worker: its compilers share one budget, and are ended when the requesting process is gone.

Who asks holds a claim in the remote, and renews it. So no executor needs a way to end what has begun: Ctrl-C removes
the claim, and a machine that is gone does not renew it.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from opforge.builders.run import jobserver, ninja
from opforge.errors import RemoteError
from opforge.foundation.fork_lock import ForkLock
from opforge.remote.claims import MAX_BYTES, VOID_SECONDS
from opforge.remote.stores.protocol import ObjectStore

log = logging.getLogger("opforge")
POLL_SECONDS = 1.0


class Session:
    """A run, as one process of a worker sees it."""

    def __init__(self, store: ObjectStore, claim: str, slots: int) -> None:
        """Begins to watch the claim. `slots` compilers may run at once. Raises StoreError, ToolchainNotFoundError."""
        self._store, self._claim, self.users = store, claim, 0
        self._seen, self._changed = b"", time.monotonic()
        is_alive = self._is_alive()
        self.jobserver = jobserver.Jobserver(slots, ninja.find_ninja())
        self._pid, self._is_open = os.getpid(), True
        atexit.register(self._close)  # a process that ends does not wait for the thread
        if not is_alive:
            self.jobserver.stop()
        threading.Thread(target=self._watch, name="opforge-farm", daemon=True).start()

    def _is_alive(self) -> bool:
        """Returns whether the claim is there and was renewed. Raises RemoteError if it cannot be read."""
        stored = self._store.get(self._claim, MAX_BYTES)
        now = time.monotonic()
        if stored and stored.data != self._seen:
            self._seen, self._changed = stored.data, now
        return stored is not None and now - self._changed <= VOID_SECONDS

    def _watch(self) -> None:
        while not self.jobserver.stopped:
            time.sleep(POLL_SECONDS)
            try:
                if not self._is_alive():
                    self.jobserver.stop()
            except RemoteError as error:  # a store that is away for a while ends no build
                log.debug("the claim %s cannot be read: %s", self._claim, error)
        with _lock:
            _sessions.pop(self._claim, None)
        while self.users:
            time.sleep(POLL_SECONDS)
        atexit.unregister(self._close)
        self._close()

    def _close(self) -> None:
        # A forked child has the parent's folder; and the thread may close it while the process ends.
        with _lock:
            is_open, self._is_open = self._is_open and os.getpid() == self._pid, False
        if is_open:
            self.jobserver.__exit__(None, None, None)


_sessions: dict[str, Session] = {}
_lock = ForkLock()


@contextmanager
def of(store: ObjectStore, claim: str, slots: int) -> Iterator[None]:
    """Lets this thread build with the budget of its run.

    Raises KeyboardInterrupt if the run has ended, and the errors of `Session`.
    """
    with _lock:
        session = _sessions.get(claim) or _sessions.setdefault(claim, Session(store, claim, slots))
        session.users += 1
    jobserver.use(session.jobserver)
    try:
        if session.jobserver.stopped:
            raise KeyboardInterrupt
        yield
    finally:
        jobserver.use(None)
        with _lock:
            session.users -= 1
