"""A lock that a forked child does not inherit: a thread that held it in the parent is not in the child."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType


class ForkLock:
    """A reentrant lock. In a forked child it is free, unless the thread that forks has it."""

    def __init__(self) -> None:
        """Begins free."""
        self._lock = threading.RLock()
        _alive.add(self)

    def __enter__(self) -> None:
        """Takes the lock."""
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Releases it."""
        self._lock.release()


_alive: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew() -> None:
    for one in [*_alive]:
        if not one._lock._is_owned():  # type: ignore[attr-defined]  # the thread that forks goes on, inside its `with`
            one._lock = threading.RLock()


os.register_at_fork(after_in_child=_renew)
