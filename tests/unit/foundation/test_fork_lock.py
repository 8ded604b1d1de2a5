"""Locks in a forked child: what a thread of the parent holds is free there, and what the forking thread holds stays."""

from __future__ import annotations

import os
import threading
from importlib import import_module

import pytest

from opforge.foundation import fork_lock
from opforge.foundation.fork_lock import ForkLock

LOCKS = (
    "opforge.graphs.session:_lock",
    "opforge.torch_internals.inductor:_folders_lock",
    "opforge.jits.scope:_lock",
    "opforge.models.scope:_lock",
    "opforge.packages.load.tree:_lock",
    "opforge.packages.sources.modules:_importing",
    "opforge.remote.background:_lock",
    "opforge.remote.farm.session:_lock",
)


def in_child(check):
    """Returns whether `check` is true in a forked child; a child that hangs is ended by an alarm."""
    child = os.fork()
    if not child:
        import signal

        signal.alarm(5)
        os._exit(0 if check() else 1)
    return os.waitpid(child, 0)[1] == 0


def entered(lock):
    with lock:
        return True


class Held:
    """A lock that another thread holds for the length of a `with`."""

    def __init__(self, lock):
        self._lock, self._taken, self._done = lock, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self):
        with self._lock:
            self._taken.set()
            self._done.wait(30)

    def __enter__(self):
        self._thread.start()
        self._taken.wait(30)

    def __exit__(self, *_error):
        self._done.set()
        self._thread.join()


@pytest.mark.parametrize("path", LOCKS)
def test_a_child_does_not_wait_for_a_thread_of_its_parent(path):
    module, _, name = path.partition(":")
    lock = getattr(import_module(module), name)
    assert isinstance(lock, ForkLock)
    with Held(lock):
        assert in_child(lambda: entered(lock))


def test_nor_for_one_that_holds_the_lock_of_a_recording_or_of_a_session_that_begins():
    from opforge.graphs import session
    from opforge.graphs.recording import Recording

    recording, beginning = Recording(), session._beginning.setdefault("a key", ForkLock())
    with Held(recording._lock), Held(beginning):
        assert in_child(lambda: entered(recording._lock) and entered(beginning))
    del session._beginning["a key"]


def test_a_lock_that_the_forking_thread_holds_is_still_held_by_it():
    lock = ForkLock()
    with lock, lock:
        assert in_child(lambda: lock._lock._is_owned() and entered(lock))
    assert in_child(lambda: not lock._lock._is_owned() and entered(lock))


def test_a_lock_that_is_used_no_more_is_forgotten():
    before = len(fork_lock._alive)
    lock = ForkLock()
    assert len(fork_lock._alive) == before + 1
    del lock
    assert len(fork_lock._alive) == before
