"""Runs a build, and kills every compiler of it when the builder is gone.

Started as a script, with nothing but the standard library:  python -I -S supervisor.py PEAK COMMAND [ARG ...]

It leads a session that every process of the build belongs to. Killing a process group would not be enough, because
ninja gives each compiler a group of its own. Standard input is a pipe from the builder. The whole session is killed
when there is something to read or the pipe ends, and when the builder is no longer the parent: a forked worker may keep
the pipe open. The most memory, in bytes, that one process of the build used is written to the file PEAK, and to PEAKs
what each command used with all that it started: a line each, with the name of its output.
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


class CommandMemory:
    """The most memory that each command of the build used, with all processes that it started.

    A command that ends within POLL_SECONDS may not be seen. Without CONFIG_PROC_CHILDREN none is.
    """

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}
        """Bytes, by the name of the command's output."""

    def measure(self, ninja: int) -> None:
        """Looks at every command that ninja runs now."""
        for command in _children(ninja):
            output = _output(command)
            if not output:
                continue
            resident = highest = 0
            waiting = [command]
            while waiting:
                process = waiting.pop()
                now, most = _memory(process)
                resident, highest = resident + now, max(highest, most)
                waiting += _children(process)
            self.peaks[output] = max(self.peaks.get(output, 0), resident, highest)


def _children(pid: int) -> list[int]:
    return [*map(int, _read(f"/proc/{pid}/task/{pid}/children").split())]


def _output(pid: int) -> str:
    """Returns the name of what a command writes: the word after its last `-o`."""
    command = _read(f"/proc/{pid}/cmdline").replace("\0", " ").rstrip()
    return command.rpartition(" -o ")[2].strip("'") if " -o " in command else ""


def _memory(pid: int) -> tuple[int, int]:
    """Returns the bytes that a process uses now, and the most that it has used; zeros if it has ended."""
    sizes = {"VmRSS:": 0, "VmHWM:": 0}
    for line in _read(f"/proc/{pid}/status").splitlines():
        words = line.split()
        if words and words[0] in sizes:
            sizes[words[0]] = int(words[1]) * KIBIBYTE
    return sizes["VmRSS:"], sizes["VmHWM:"]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""  # it has ended


def _write_peaks(path: str, largest: int, memory: CommandMemory) -> None:
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(str(largest))
        with open(path + "s", "w", encoding="utf-8", errors="surrogateescape") as file:
            file.writelines(f"{peak} {output}\n" for output, peak in memory.peaks.items())
    except OSError:
        return  # the build itself reports a full disk


def main(peak: str, command: list[str]) -> int:
    """Runs `command` to its end or the builder's. Returns its exit status, 128 + signal if it was killed."""
    builder, session = os.getppid(), os.getsid(0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a builder that ignores it hands that on: then no status is kept
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        child = os.posix_spawnp(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, null, 0)])
    except OSError as error:
        sys.stdout.write(f"{NOT_STARTED}{error.filename or command[0]}: {error.strerror}\n")
        return 126
    watched: list[int] = [0]
    if hasattr(os, "pidfd_open"):
        watched.append(os.pidfd_open(child))
    status, memory = None, CommandMemory()
    while status is None:
        ready, _, _ = select.select(watched, [], [], POLL_SECONDS)
        pid, raw, used = os.wait4(child, os.WNOHANG)
        if pid:
            status = os.waitstatus_to_exitcode(raw)
            _write_peaks(peak, used.ru_maxrss * KIBIBYTE, memory)
        elif 0 in ready or os.getppid() != builder:
            _kill_all(session)
            os.waitpid(child, 0)
            return 1
        else:
            memory.measure(child)
    if status < 0:
        _kill_all(session)  # ninja alone was killed: its compilers must not outlive it
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
