"""The kernel's signal to a process whose parent is gone: it reaches what nobody is left to end."""

from __future__ import annotations

import ctypes
import os
import signal

_DIE_WITH_PARENT, _BE_SUBREAPER = 1, 36
_kernel = ctypes.CDLL(None)  # here, so that a child between fork and exec loads nothing


def die_with(parent: int, number: signal.Signals) -> None:
    """Let this process get a signal when its parent dies; outlives an exec. Ends it if the parent is gone already."""
    _kernel.prctl(_DIE_WITH_PARENT, number, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, whatever its session."""
    _kernel.prctl(_BE_SUBREAPER, 1, 0, 0, 0)
