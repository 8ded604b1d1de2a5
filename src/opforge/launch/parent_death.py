"""prctl(PR_SET_PDEATHSIG) and prctl(PR_SET_CHILD_SUBREAPER): no rank outlives its launcher.

The kernel signals a process whose parent has died, even if the parent had no chance to clean up.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None)  # at import: a child between fork and exec must not load a library


def signal_on_parent_death(parent: int, number: signal.Signals) -> None:
    """Requests a signal to this process when its parent dies. The request outlives an exec.

    Kills this process if the parent has died already.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def become_subreaper() -> None:
    """Makes this process the parent of every descendant whose own parent dies, in whatever session."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
