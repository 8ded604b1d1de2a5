"""The launcher's end of a host's agent: a process (Python here, ssh to another host), its lifeline, its answer."""

from __future__ import annotations

import json
import os
import selectors
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import opforge
from opforge.errors import LauncherNotFoundError, LaunchError

from .agent import TOLD
from .hostfile import Host
from .plan import Plan, is_here

ANSWER_SECONDS = 180.0
"""How long the hosts may take to answer: a name that does not resolve, a host that is down."""
GRACE_SECONDS = 30.0
"""How long an engine may take to end its ranks when it is asked to, before all are killed: as long as torchrun does."""


class Channel:
    """The connection to one host's agent. While `stream` is open, the agent lives."""

    def __init__(self, host: Host, plan: Plan) -> None:
        self.host = host
        self.here = is_here(host)
        self.started = False
        """Whether it was told to start its engine."""
        agent = [sys.executable, "-m", "opforge.launch.agent"]
        self.program = sys.executable if self.here else plan.ssh[0]
        if shutil.which(self.program) is None:
            advice = "Install it (apt install openssh-client), or name another with --ssh"
            raise LauncherNotFoundError(plan.launcher, f"there is no {self.program} on PATH", advice)
        reader, writer = os.pipe()
        if self.here:
            # A session of its own: Ctrl-C is for the launcher, which then ends the job through the lifeline.
            argv = [*agent, str(writer)]
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=[writer], start_new_session=True)
        else:
            path = os.environ.get("PYTHONPATH")
            command = [*(["env", f"PYTHONPATH={path}"] if path else []), *agent, "1"]
            argv = [*plan.ssh, host.name, shlex.join(command)]  # ssh hands one string to a shell over there
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=writer)
        os.close(writer)
        self.stream = os.fdopen(reader, "rb", 0)
        self.answer: dict[str, Any] | None = None
        self._text = b""

    def say(self, line: str) -> None:
        """Send a line down the lifeline. An agent that is gone is found out by its stream."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass

    def order(self, plan: Plan, engine: Sequence[str], share: Host | None, grace: float) -> None:
        """Send the order: what to bind, and the engine to start on `go`; without an engine it is only a question."""
        environ = {} if self.here else dict(plan.exports)
        if plan.launcher == "torchrun" and plan.wishes.threads:
            environ["OMP_NUM_THREADS"] = "1"  # torchrun sets it so with a warning; the ranks set their own
        self.say(
            json.dumps(
                {
                    "version": opforge.__version__,
                    "folder": plan.folder,
                    "environ": environ,
                    "wishes": plan.wishes._asdict(),
                    "share": None if share is None else {"slots": share.slots, "chosen": share.chosen},
                    "engine": list(engine),
                    "grace": grace,
                }
            )
        )

    def take(self, part: bytes) -> bytes:
        """Take what came; returns what is not the answer: output for people."""
        if self.answer is not None:
            return part
        self._text += part
        before, mark, after = self._text.partition(b"\n" + TOLD)
        if not mark or b"\n" not in after:
            return b""
        line, _, rest = after.partition(b"\n")
        self.answer, self._text = json.loads(line), b""
        return before + rest

    def go(self) -> None:
        """Let it start its engine."""
        self.started = True
        self.say("go")

    def end(self) -> None:
        """Ask it to end its engine, and itself. One that has started nothing is left to the end of its lifeline."""
        if self.started:
            self.say("end")
            return
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        if not self.here:
            self.process.terminate()  # an ssh that is still trying to connect

    def why_gone(self) -> str:
        """What to say of an agent that ended before it had answered."""
        status = self.process.wait()
        said = self._text.decode(errors="replace").strip()
        where = "its agent" if self.here else os.path.basename(self.program)
        return f"{self.host.name} gave no answer: {where} ended with status {status}" + (
            f" and said {said!r}" if said else ""
        )


def answers(channels: Sequence[Channel], seconds: float = ANSWER_SECONDS) -> list[dict[str, Any]]:
    """What each host answers, once all have. Raises LaunchError for the first that cannot, naming the host."""
    waiting = {channel.host.name for channel in channels}
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for one in channels:
            selector.register(one.stream, selectors.EVENT_READ, one)
        while waiting:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise LaunchError(
                    f"no answer within {seconds:g} s from {', '.join(sorted(waiting))}",
                    "See that each can be reached without a password by the command that --ssh names",
                )
            for key, _ in ready:
                channel: Channel = key.data
                part = channel.stream.read(1 << 16)
                pass_on(channel.take(part))
                if channel.answer is not None:
                    selector.unregister(channel.stream)
                    waiting.discard(channel.host.name)
                    if "error" in channel.answer:
                        raise LaunchError(
                            f"on {channel.host.name}: {channel.answer['error'].rstrip('.')}", "Nothing was started"
                        )
                elif not part:
                    raise LaunchError(
                        channel.why_gone(),
                        f"See that the command works there by hand, and that {sys.executable} has opforge on that host",
                    )
    return [channel.answer or {} for channel in channels]


def pass_on(output: bytes) -> None:
    """Write what a remote host's ranks wrote."""
    while output:
        output = output[os.write(1, output) :]
