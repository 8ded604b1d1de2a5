"""The launcher's connection to the agent of a host: a process (Python here, ssh to another host) and its two pipes."""

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

from opforge.errors import LauncherNotFoundError, LaunchError
from opforge.foundation import opforge_version

from .hostfile import Host
from .plan import Plan
from .protocol import AGENT_MARK, END, GO

RESPONSE_SECONDS = 180.0
"""How long the hosts may take to respond: a name that does not resolve, a host that is down."""
GRACE_SECONDS = 30.0
"""How long an engine may take to end its ranks before all are killed: torchrun itself waits as long."""


class Channel:
    """The connection to one host's agent. While `stream` is open, the agent lives."""

    def __init__(self, host: Host, plan: Plan) -> None:
        """Starts the agent. Raises LauncherNotFoundError if its program is not on PATH."""
        self.host = host
        self.started = False
        """Whether the message that starts the agent's engine was sent."""
        agent = [sys.executable, "-m", "opforge.launch.agent"]
        self.program = sys.executable if host.is_local else plan.ssh[0]
        if shutil.which(self.program) is None:
            advice = "Install it (apt install openssh-client), or name another with --ssh"
            raise LauncherNotFoundError(plan.launcher, f"there is no {self.program} on PATH", advice)
        reader, writer = os.pipe()
        if host.is_local:
            # In a session of its own the agent does not get Ctrl-C: the launcher does, and ends the job in order.
            argv = [*agent, str(writer)]
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=[writer], start_new_session=True)
        else:
            path = os.environ.get("PYTHONPATH")
            command = [*(["env", f"PYTHONPATH={path}"] if path else []), *agent, "1"]
            argv = [*plan.ssh, host.name, shlex.join(command)]  # ssh passes one string to the remote shell
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=writer)
        os.close(writer)
        self.stream = os.fdopen(reader, "rb", 0)
        self.response: dict[str, Any] | None = None
        self._buffer = b""

    def send(self, line: bytes) -> None:
        """Writes a line to the control pipe. Ignores an agent that is gone: its stream shows that."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + b"\n")
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass

    def send_request(self, plan: Plan, engine: Sequence[str], share: Host | None, grace: float) -> None:
        """Sends the request: the ranks to place, and the engine to start on GO.

        Args:
            plan: The plan of the launch.
            engine: The engine's command. Empty: the agent ends after its response.
            share: The host whose slots the agent places. None: it places none.
            grace: The seconds that the engine may take to end its ranks.
        """
        environ = {} if self.host.is_local else dict(plan.exports)
        if plan.launcher == "torchrun" and plan.bind_options.set_threads:
            environ["OMP_NUM_THREADS"] = "1"  # otherwise torchrun sets it, with a warning; the ranks set their own
        request = {
            "version": opforge_version.VERSION,
            "folder": plan.folder,
            "environ": environ,
            "bind_options": plan.bind_options._asdict(),
            "share": None if share is None else {"slots": share.slots, "chosen": share.chosen},
            "engine": list(engine),
            "grace": grace,
        }
        self.send(json.dumps(request).encode())

    def feed(self, part: bytes) -> bytes:
        """Takes output of the agent. Returns what is not part of the response: output of the ranks."""
        if self.response is not None:
            return part
        self._buffer += part
        before, mark, after = self._buffer.partition(b"\n" + AGENT_MARK)
        if not mark or b"\n" not in after:
            return b""
        line, _, rest = after.partition(b"\n")
        self.response, self._buffer = json.loads(line), b""
        return before + rest

    def start_engine(self) -> None:
        """Lets the agent start its engine."""
        self.started = True
        self.send(GO)

    def end(self) -> None:
        """Requests that the agent end its engine and itself. If none was started, closes the control pipe."""
        if self.started:
            self.send(END)
            return
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        if not self.host.is_local:
            self.process.terminate()  # an ssh that is still connecting does not read the pipe

    def exit_text(self) -> str:
        """Waits for the agent's process and describes how it ended without a response."""
        status = self.process.wait()
        output = self._buffer.decode(errors="replace").strip()
        program = "its agent" if self.host.is_local else os.path.basename(self.program)
        printed = f" and printed {output!r}" if output else ""
        return f"no response from {self.host.name}: {program} ended with status {status}{printed}"


def wait_for_responses(channels: Sequence[Channel], seconds: float = RESPONSE_SECONDS) -> list[dict[str, Any]]:
    """Waits for all hosts and returns their responses. Raises LaunchError for the first one with an error."""
    waiting = {channel.host.name for channel in channels}
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for channel in channels:
            selector.register(channel.stream, selectors.EVENT_READ, channel)
        while waiting:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise LaunchError(
                    f"no response from {', '.join(sorted(waiting))} within {seconds:g} s",
                    "Check that the --ssh command reaches each host without asking for a password",
                )
            for key, _ in ready:
                _receive(key.data)
                if key.data.response is not None:
                    selector.unregister(key.fileobj)
                    waiting.discard(key.data.host.name)
    return [channel.response or {} for channel in channels]


def _receive(channel: Channel) -> None:
    """Reads once from an agent that has not responded. Raises LaunchError if it has ended or responds with an error."""
    part = channel.stream.read(1 << 16)
    forward_output(channel.feed(part))
    if channel.response is None and not part:
        raise LaunchError(
            channel.exit_text(),
            f"Check that the command works there by hand, and that {sys.executable} has opforge on that host",
        )
    if channel.response is not None and "error" in channel.response:
        error = channel.response["error"].rstrip(".")
        raise LaunchError(f"on {channel.host.name}: {error}", "Nothing was started")


def forward_output(output: bytes) -> None:
    """Writes output of a remote host's ranks to standard output."""
    while output:
        output = output[os.write(1, output) :]
