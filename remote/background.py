"""Publishes the ops that a process has built, in a thread: no `load()` waits for it or fails because of it."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import NamedTuple

from opforge.fast_path.library import Entry
from opforge.foundation import settings
from opforge.foundation.fork_lock import ForkLock

from . import remembered_answers
from .claims import Claim
from .op_statements import OP
from .publish import push as publish
from .remotes import Remote
from .signatures import keys
from .stores import open_store

log = logging.getLogger("opforge")
EXIT_SECONDS = 5.0
"""How long an ending process waits for what it publishes."""


class _Job(NamedTuple):
    remote: Remote
    op: str
    folder: str
    description: str
    claim: Claim | None = None
    """Ended when this is published, or could not be."""


class _Worker:
    """The thread of one process, and what it has to do."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._open = 0
        self._idle = threading.Condition()
        threading.Thread(target=self._run, name="opforge-push", daemon=True).start()

    def add(self, job: _Job) -> None:
        with self._idle:
            self._open += 1
        self._jobs.put(job)

    def wait(self, seconds: float) -> bool:
        """Waits until all is published; returns whether it is."""
        deadline = time.monotonic() + seconds
        with self._idle:
            return self._idle.wait_for(lambda: not self._open, max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while True:
            job, is_published = self._jobs.get(), False
            try:
                _push(job)
                is_published = True
            except Exception as error:  # a store, a key or a signing command may raise anything
                log.warning("%s: it was not published to %s: %s", job.op, job.remote, error)
                remembered_answers.note_failure(job.remote, error)
            finally:
                if job.claim:
                    job.claim.end(is_published)
                with self._idle:
                    self._open -= 1
                    self._idle.notify_all()


_lock = ForkLock()
_worker: _Worker | None = None


def push(remotes: Sequence[Remote], op: str, entry: Entry, description: str, claim: Claim | None = None) -> None:
    """Publishes an entry to remotes in the background. `claim` is the one in the first remote."""
    global _worker
    with _lock:
        if _worker is None or _worker.pid != os.getpid():  # a forked process has no thread
            _worker = _Worker()
            _wait_at_exit()
        for number, remote in enumerate(remotes):
            _worker.add(_Job(remote, op, entry.folder, description, None if number else claim))


def _push(job: _Job) -> None:
    if settings.offline() and not job.remote.is_local:
        log.info("%s: it is not published to %s: OPFORGE_OFFLINE=1 forbids the network", job.op, job.remote)
        return
    signer = None if job.remote.is_unsigned else keys.signer()
    store, entry = open_store(job.remote.url, settings.offline()), OP.at(job.folder, job.description)
    publish(store, job.remote, OP, entry, signer)


def wait(seconds: float = EXIT_SECONDS) -> None:
    """Waits until this process has published what it built, at most so long. Logs a warning if that is too short."""
    worker = _worker
    if worker is not None and worker.pid == os.getpid() and not worker.wait(seconds):
        log.warning("This process ends before all that it built was published: opforge publish publishes the rest")


def _wait_at_exit() -> None:
    """Makes an ending process wait. Those of multiprocessing end without calling what atexit has."""
    atexit.unregister(wait)
    atexit.register(wait)
    if (util := sys.modules.get("multiprocessing.util")) is not None:
        util.Finalize(None, wait, exitpriority=0)
