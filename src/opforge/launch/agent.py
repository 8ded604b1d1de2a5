"""The process between the launcher and the engine on each host. It ends all processes there when it must.

    python -m opforge.launch.agent RESPONSE

Standard input is the control pipe (see protocol.py). Its end means that the launcher or the connection is gone, and is
treated as END. RESPONSE is the file descriptor for the response: where the ranks would run, or an error. The agent is
the subreaper of its host's part of the job: whatever a rank starts stays its descendant, in whatever session, so that
it can find and end all of it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from opforge.errors import LaunchError, OpforgeError
from opforge.foundation import opforge_version

from .bind_options import BindOptions
from .binding.rank_binding import binding_rows
from .parent_death import become_subreaper, signal_on_parent_death
from .protocol import AGENT_MARK, GO, KILL

POLL_SECONDS = 0.1
KILL_SECONDS = 30.0
"""How long killed processes may take to end: a driver takes time to free a device's memory."""


class ControlPipe:
    """The lines that the launcher sends."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._buffer = b""

    @property
    def has_line(self) -> bool:
        """Whether a whole line was received already."""
        return b"\n" in self._buffer

    def line(self) -> bytes | None:
        """Waits for the next line and returns it. None at the end of the pipe."""
        while not self.has_line:
            part = os.read(self.handle, 1 << 16)
            if not part:
                return None
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def main(response_handle: int) -> int:
    """Serves one request. Returns the engine's exit status, 128 + signal if it was killed."""
    os.set_inheritable(response_handle, response_handle in (1, 2))  # otherwise an engine would keep the pipe open
    control = ControlPipe(0)
    line = control.line()
    if line is None:
        return 1
    request = json.loads(line)
    response = _respond(request)
    try:
        os.write(response_handle, b"\n" + AGENT_MARK + json.dumps(response).encode() + b"\n")
    except BrokenPipeError:
        return 1  # the launcher has given up
    if "error" in response:
        return 1
    if not request["engine"] or control.line() != GO:
        return 0
    return _serve(request, control)


def _respond(request: dict[str, Any]) -> dict[str, Any]:
    """Returns where the ranks of this host would run, as `ranks`, or an `error`."""
    try:
        if request["version"] != opforge_version.VERSION:
            raise LaunchError(
                f"opforge {opforge_version.VERSION} is installed there, and the launcher has {request['version']}",
                "Install the same version on all hosts",
            )
        if not os.path.isdir(request["folder"]):
            problem = f"there is no folder {request['folder']} on that host"
            raise LaunchError(problem, "Launch from a folder that all hosts share")
        share = request["share"]
        if share is None:
            return {"ranks": []}
        fields = request["bind_options"]
        options = BindOptions(**{**fields, "core_list": tuple(fields["core_list"])})
        environ = {**os.environ, **request["environ"]}
        return {"ranks": binding_rows(share["slots"], share["chosen"], options, environ)}
    except OpforgeError as error:
        return {"error": str(error)}


def _serve(request: dict[str, Any], control: ControlPipe) -> int:
    """Runs the engine until it ends or the launcher is gone. On return none of its processes is left."""
    become_subreaper()
    agent = os.getpid()
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def before_exec() -> None:  # runs in the child; this process has one thread
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal_on_parent_death(agent, signal.SIGTERM)

    environ = {**os.environ, **request["environ"]}
    try:
        engine = subprocess.Popen(
            request["engine"],
            stdin=subprocess.DEVNULL,
            env=environ,
            cwd=request["folder"],
            start_new_session=True,
            preexec_fn=before_exec,
        )
    except OSError as error:
        sys.stderr.write(f"opforge launch: error: {request['engine'][0]} could not be started: {error.strerror}\n")
        return 127
    try:
        return _watch(engine, control, request["grace"], lambda: bool(signals))
    finally:
        end_descendants()
        _reap()


def _watch(engine: subprocess.Popen[bytes], control: ControlPipe, grace: float, terminated: Callable[[], bool]) -> int:
    """Waits for the engine and returns its status. Once it must end, it has `grace` seconds before it is killed."""
    watched, deadline = [control.handle], None
    while engine.poll() is None:
        ready, _, _ = select.select(watched, [], [], POLL_SECONDS)
        _reap(engine.pid)
        must_end = terminated()
        if ready or control.has_line:
            line = control.line()
            must_end = True
            if line is None:
                watched.clear()
            elif line == KILL:
                deadline = 0.0
        if must_end and deadline is None:
            deadline = time.monotonic() + grace
            engine.terminate()
        if deadline is not None and time.monotonic() > deadline:
            end_descendants()
    return engine.returncode if engine.returncode >= 0 else 128 - engine.returncode


def _reap(excluded: int = 0) -> None:
    """Collects orphans that have ended. Leaves out `excluded`, the engine, which its Popen object collects."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid == excluded:
            return
        os.waitpid(ended.si_pid, os.WNOHANG)


def end_descendants(seconds: float = KILL_SECONDS) -> None:
    """Kills every descendant of this process, again and again until none is left: one may be starting another.

    Descendants that are still alive after `seconds` are reported and left: they belong to another user, or hang in
    the kernel.
    """
    deadline = time.monotonic() + seconds
    while pids := descendants(os.getpid()):
        for pid in pids:
            with suppress(OSError):  # it has ended, or it belongs to another user (a setuid program)
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            left = ", ".join(str(pid) for pid in pids)
            sys.stderr.write(f"opforge launch: warning: processes that could not be ended: {left}\n")
            return
        time.sleep(0.005)


def descendants(pid: int) -> list[int]:
    """Returns the live descendants of a process, without those that have ended and wait to be collected."""
    children: dict[int, list[int]] = {}
    ended = set()
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        children.setdefault(int(parent), []).append(int(name))
        if state in (b"Z", b"X"):
            ended.add(int(name))
    live, parents = [], [pid]
    while parents:
        direct = children.get(parents.pop(), [])
        live += [child for child in direct if child not in ended]
        parents += direct
    return live


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
