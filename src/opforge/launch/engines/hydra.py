"""Waits for a rank's program under hydra, the launcher of MPICH and Intel MPI, and ends the job if the program fails.

Hydra ends a job if a rank aborts through PMI, its connection to each process. It does not if a process that never used
PMI ends with an error status. So this process stays as the parent, and aborts for the program.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from opforge.launch.parent_death import signal_on_parent_death

FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
ABORT_SECONDS = 5.0
"""How long this process waits after the abort. Hydra kills it; if it ended first, Intel MPI would miss the abort."""


def run_program(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs the program to its end. Returns its status, or 128 + signal if it was killed. Raises OSError."""
    parent = os.getpid()

    def before_exec() -> None:  # runs in the child; this process has one thread
        signal_on_parent_death(parent, signal.SIGKILL)

    # The program may use PMI itself, so it inherits the connection.
    program = subprocess.Popen(command, env=environ, close_fds=False, preexec_fn=before_exec)
    for number in FORWARDED_SIGNALS:
        signal.signal(number, lambda number, frame: program.send_signal(number))
    status = program.wait()
    status = status if status >= 0 else 128 - status
    pmi = environ.get("PMI_FD", "")
    if status and pmi.isdecimal():
        try:
            os.write(int(pmi), b"cmd=abort exitcode=%d\n" % status)
            time.sleep(ABORT_SECONDS)
        except OSError:
            pass  # hydra has ended, and the job with it
    return status
