"""Stands on each host of a job between the launcher and the engine, and ends all that runs there when it must.

    python -m opforge.launch.agent REPORT

Standard input is the lifeline. It brings one order (a line of JSON), then the word `go`, later `end` or `kill`; where
it breaks off, the launcher or the connection is gone, which means `end`. REPORT is the file descriptor for the answer:
where the ranks would run, or why they cannot. The agent is the subreaper of its host's part of the job: whatever a rank
starts stays its descendant, in whatever session, and none outlives it.
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

import opforge
from opforge.errors import LaunchError, OpforgeError

from .binding.rank_binding import Wishes, describe
from .parent_death import adopt_orphans, die_with

TOLD = b"opforge-agent: "
"""Begins the line of the answer: login shells may print before it."""
POLL_SECONDS = 0.1
LEFT_SECONDS = 30.0
"""How long killed processes may take to go: a driver takes its time over a device's memory."""


class Lifeline:
    """What the launcher says, line by line."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._rest = b""

    @property
    def pending(self) -> bool:
        """Whether a line has come already."""
        return b"\n" in self._rest

    def line(self) -> bytes | None:
        """The next line, waiting for it; None at the end."""
        while not self.pending:
            part = os.read(self.handle, 1 << 16)
            if not part:
                return None
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def main(report: int) -> int:
    """Serve one order; returns the engine's exit status, 128 + signal if it was killed."""
    os.set_inheritable(report, report in (1, 2))  # else an engine would hold the report open
    lifeline = Lifeline(0)
    line = lifeline.line()
    if line is None:
        return 1
    order = json.loads(line)
    answer = _answer(order)
    try:
        os.write(report, b"\n" + TOLD + json.dumps(answer).encode() + b"\n")
    except BrokenPipeError:
        return 1  # the launcher has given up already
    if "error" in answer or not order["engine"] or lifeline.line() != b"go":
        return 0 if "error" not in answer else 1
    return _serve(order, lifeline)


def _answer(order: dict[str, Any]) -> dict[str, Any]:
    """Where the ranks of this host would run; or `error`."""
    try:
        if order["version"] != opforge.__version__:
            raise LaunchError(
                f"opforge is {opforge.__version__} there and {order['version']} where the job was launched",
                "Install the same version on all hosts",
            )
        if not os.path.isdir(order["folder"]):
            raise LaunchError(
                f"there is no folder {order['folder']} there", "Launch from a folder that all hosts share"
            )
        share = order["share"]
        if share is None:
            return {"ranks": []}
        wishes = Wishes(**{**order["wishes"], "listed": tuple(order["wishes"]["listed"])})
        return {"ranks": describe(share["slots"], share["chosen"], wishes, {**os.environ, **order["environ"]})}
    except OpforgeError as problem:
        return {"error": str(problem)}


def _serve(order: dict[str, Any], lifeline: Lifeline) -> int:
    """Run the engine until it ends or the lifeline does; nothing of it is left on return."""
    adopt_orphans()
    agent = os.getpid()
    asked_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked_to_end.append(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def before() -> None:  # in the child; this process has one thread
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        die_with(agent, signal.SIGTERM)

    environ = {**os.environ, **order["environ"]}
    try:
        engine = subprocess.Popen(
            order["engine"],
            stdin=subprocess.DEVNULL,
            env=environ,
            cwd=order["folder"],
            start_new_session=True,
            preexec_fn=before,
        )
    except OSError as problem:
        sys.stderr.write(f"opforge launch: error: {order['engine'][0]} could not be started: {problem.strerror}\n")
        return 127
    try:
        return _watch(engine, lifeline, order["grace"], lambda: bool(asked_to_end))
    finally:
        end_descendants()
        _reap()


def _watch(engine: subprocess.Popen[bytes], lifeline: Lifeline, grace: float, asked: Callable[[], bool]) -> int:
    """Wait for the engine. Once it is to end it has `grace` seconds to do so by itself."""
    watched, deadline = [lifeline.handle], None
    while engine.poll() is None:
        ready, _, _ = select.select(watched, [], [], POLL_SECONDS)
        _reap(engine.pid)
        over = asked()
        if ready or lifeline.pending:
            word = lifeline.line()
            over = True
            if word is None:
                watched.clear()
            elif word == b"kill":
                deadline = 0.0
        if over and deadline is None:
            deadline = time.monotonic() + grace
            engine.terminate()
        if deadline is not None and time.monotonic() > deadline:
            end_descendants()
    return engine.returncode if engine.returncode >= 0 else 128 - engine.returncode


def _reap(but: int = 0) -> None:
    """Collect orphans that have ended; not `but`, the engine, which its own object collects."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid == but:
            return
        os.waitpid(ended.si_pid, os.WNOHANG)


def end_descendants(seconds: float = LEFT_SECONDS) -> None:
    """Kill every descendant of this process until none is alive: one may have been starting another.

    Those that are still there after `seconds` are told and left: another user's, or hanging in the kernel.
    """
    deadline = time.monotonic() + seconds
    while found := descendants(os.getpid()):
        for pid in found:
            with suppress(OSError):  # it is gone, or it is another user's: a setuid program
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            left = ", ".join(str(pid) for pid in found)
            sys.stderr.write(f"opforge launch: warning: processes that could not be ended are left: {left}\n")
            return
        time.sleep(0.005)


def descendants(pid: int) -> list[int]:
    """The live descendants of a process. Those that have ended and wait to be collected are left out."""
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
    found, look = [], [pid]
    while look:
        below = children.get(look.pop(), [])
        found += [child for child in below if child not in ended]
        look += below
    return found


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
