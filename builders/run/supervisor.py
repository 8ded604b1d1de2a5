"""Runs a build and ends every compiler of it when the builder is gone.

Started as a script, on the standard library alone:  python -I -S supervisor.py PEAK COMMAND [ARG ...]

It leads a session of its own, which every process of the build belongs to: ninja gives each compiler a process group,
so killing a group is not enough. Standard input is a pipe that the builder holds: at its end, or when the builder is
no longer the parent (a forked worker may keep the pipe open), the whole session is killed. The file
PEAK gets the most memory, in bytes, that one of its processes took.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

POLL_SECONDS = 0.1
KIBIBYTE = 1024
"""The unit in which Linux counts memory for wait4."""


def _members(session: int) -> list[int]:
    """The live processes of a session, this one apart."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != b"Z":
            found.append(int(name))
    return found


def _end_all(session: int) -> None:
    """Kill the session's processes until none is left: one may have been starting another."""
    for _attempt in range(200):
        members = _members(session)
        if not members:
            return
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.005)


def main(peak: str, command: list[str]) -> int:
    """Run `command` to its end or the builder's; returns its exit status, 128 + signal if it was killed."""
    builder, session = os.getppid(), os.getsid(0)
    null = os.open(os.devnull, os.O_RDONLY)
    child = os.posix_spawnp(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, null, 0)])
    watched: list[int] = [0]
    ended = -1
    if hasattr(os, "pidfd_open"):
        ended = os.pidfd_open(child)
        watched.append(ended)
    status = None
    while status is None:
        ready, _, _ = select.select(watched, [], [], POLL_SECONDS)
        pid, raw, used = os.wait4(child, os.WNOHANG)
        if pid:
            status = os.waitstatus_to_exitcode(raw)
            try:
                with open(peak, "w", encoding="ascii") as file:
                    file.write(str(used.ru_maxrss * KIBIBYTE))
            except OSError:
                pass  # a full disk is for the build itself to report
        elif 0 in ready or os.getppid() != builder:
            _end_all(session)
            os.waitpid(child, 0)
            return 1
    if status < 0:
        _end_all(session)  # ninja alone was killed: its compilers are not to outlive it
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
