"""Runs programs so that their exit statuses are known, also in a process that ignores SIGCHLD.

There the system keeps no status, and `subprocess` returns 0 for each program. The programs inherit it, and lose the
statuses of those that they start. So a Python in between, which does not ignore the signal, runs them. Started as a
script, with nothing but the standard library:  python -I -S exit_status.py NUMBER TIMEOUT COMMAND [ARG ...]
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

FURTHER_SECONDS = 10.0
"""How much longer than the program the Python in between may take."""


def run(command: Sequence[str], timeout: float, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Runs a program as `subprocess.run` does.

    Raises:
        OSError: It cannot be started.
        subprocess.TimeoutExpired: It takes longer than `timeout` seconds.
    """
    if not sys.executable or not _is_ignored():
        return subprocess.run(command, timeout=timeout, check=False, **options)
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as reading:
        try:
            between = [sys.executable, "-I", "-S", __file__, str(writer), str(timeout)]
            done = subprocess.run(
                [*between, *command], pass_fds=[writer], timeout=timeout + FURTHER_SECONDS, check=False, **options
            )
        finally:
            os.close(writer)
        said: Mapping[str, Any] = json.loads(reading.readline() or '{"status": 1}')  # it was killed
    if "errno" in said:
        raise OSError(said["errno"], os.strerror(said["errno"]), said["filename"])
    if "status" not in said:
        raise subprocess.TimeoutExpired(command, timeout, done.stdout, done.stderr)
    return subprocess.CompletedProcess(command, said["status"], done.stdout, done.stderr)


def _is_ignored() -> bool:
    """Returns whether this process ignores SIGCHLD. Python does not know what C code has set."""
    try:
        with open("/proc/self/status", "rb") as file:
            ignored = next(int(line.split()[1], 16) for line in file if line.startswith(b"SigIgn:"))
        return bool(ignored >> (signal.SIGCHLD - 1) & 1)
    except (OSError, StopIteration):
        return signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN


def _outcome(command: Sequence[str], timeout: float) -> dict[str, Any]:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        return {"status": subprocess.run(command, timeout=timeout, check=False).returncode}
    except subprocess.TimeoutExpired:
        return {}
    except OSError as error:
        return {"errno": error.errno, "filename": error.filename}


if __name__ == "__main__":
    with open(int(sys.argv[1]), "w") as file:
        json.dump(_outcome(sys.argv[3:], float(sys.argv[2])), file)
