"""Runs a build, and kills every compiler of it when the builder is gone.

Started as a script, with nothing but the standard library:  python -I -S supervisor.py PEAK COMMAND [ARG ...]

It leads a session that every process of the build belongs to. Killing a process group would not be enough, because
ninja gives each compiler a group of its own. Standard input is a pipe from the builder. The whole session is killed
when there is something to read or the pipe ends, and when the builder is no longer the parent: a forked worker may keep
the pipe open. The most memory, in bytes, that one process of the build used is written to the file PEAK.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

POLL_SECONDS = 0.1
"""How often it checks whether the builder is still its parent."""
NOT_STARTED = "opforge: the build cannot be started: "
"""How the one line of its output begins if it starts nothing."""
KIBIBYTE = 1024
"""Bytes in the unit in which Linux counts memory for wait4."""


def _members(session: int) -> list[int]:
    """Returns the live processes of a session, without this one."""
    members = []
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != b"Z":
            members.append(int(name))
    return members


def _kill_all(session: int) -> None:
    """Kills the session's processes until none is left: one may just have started another."""
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
    """Runs `command` to its end or the builder's. Returns its exit status, 128 + signal if it was killed."""
    builder, session = os.getppid(), os.getsid(0)
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        child = os.posix_spawnp(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, null, 0)])
    except OSError as error:
        sys.stdout.write(f"{NOT_STARTED}{error.filename or command[0]}: {error.strerror}\n")
        return 126
    watched: list[int] = [0]
    if hasattr(os, "pidfd_open"):
        watched.append(os.pidfd_open(child))
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
                pass  # the build itself reports a full disk
        elif 0 in ready or os.getppid() != builder:
            _kill_all(session)
            os.waitpid(child, 0)
            return 1
    if status < 0:
        _kill_all(session)  # ninja alone was killed: its compilers must not outlive it
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
