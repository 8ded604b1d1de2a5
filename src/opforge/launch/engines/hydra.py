"""Waits for a rank's program under MPICH's and Intel MPI's launcher, hydra, and has the job ended when it fails.

Hydra ends a job when a rank aborts through PMI, its wire to each process, and lets it run on when a process that has
not begun to speak PMI merely ends with a status. So this process stays, and aborts for the program.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from opforge.launch.parent_death import die_with

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
HEARD_SECONDS = 5.0
"""Hydra answers by killing this process; were it gone before, Intel MPI would not hear it."""


def wait_for(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the program to its end; returns its status, 128 + signal if it was killed. Raises OSError."""
    here = os.getpid()

    def before() -> None:  # in the child; this process has one thread
        die_with(here, signal.SIGKILL)

    # The program may speak PMI itself, so it keeps the wire.
    program = subprocess.Popen(command, env=environ, close_fds=False, preexec_fn=before)
    for number in PASSED_ON:
        signal.signal(number, lambda number, frame: program.send_signal(number))
    status = program.wait()
    status = status if status >= 0 else 128 - status
    wire = environ.get("PMI_FD", "")
    if status and wire.isdecimal():
        try:
            os.write(int(wire), b"cmd=abort exitcode=%d\n" % status)
            time.sleep(HEARD_SECONDS)
        except OSError:
            pass  # hydra is gone, and the job with it
    return status
