"""Runs a function in a process of its own: it may crash, hang, or end that process."""

from __future__ import annotations

import json
import math
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

LONGEST_LINE = 300
"""The number of characters that are shown of what a process has printed last."""


class Ended(NamedTuple):
    """How a process ended."""

    said: dict[str, Any]
    """The reported values, by name; of a name that was reported twice, the last value."""
    problem: str = ""
    """Why it did not end by itself with success; empty if it did."""
    printed: str = ""
    """The last line that it printed, if there is a problem."""
    seconds: float = 0.0
    is_late: bool = False
    """Whether it was killed because its time was over."""


def run(work: Callable[[Callable[..., None]], None], timeout: float) -> Ended:
    """Runs `work` in a child of this process, which must have no other threads.

    Args:
        work: Gets a function that reports values of JSON by name.
        timeout: Seconds after which the child is killed; infinity for a child that may take as long as it needs.
    """
    reader, writer = os.pipe()
    with (
        tempfile.TemporaryFile() as output,
        # A child that crashes removes nothing.
        tempfile.TemporaryDirectory(prefix="opforge-check-", ignore_cleanup_errors=True) as folder,
    ):
        sys.stdout.flush()
        sys.stderr.flush()
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            os.close(reader)
            os.environ["TMPDIR"] = tempfile.tempdir = folder
            _in_child(work, writer, output.fileno())
        os.close(writer)
        try:
            said, is_late = _listen(reader, began + timeout)
        except BaseException:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        finally:
            os.close(reader)
        if is_late:
            os.kill(child, signal.SIGKILL)
        _pid, status = os.waitpid(child, 0)
        seconds = round(time.monotonic() - began, 2)
        problem = (
            f"it did not end within {timeout:g} s" if is_late else _problem(os.waitstatus_to_exitcode(status), said)
        )
        return Ended(said, problem, _last_line(output) if problem else "", seconds, is_late)


def _in_child(work: Callable[[Callable[..., None]], None], writer: int, output: int) -> None:
    """Runs the work, and ends the process without what this process would do at its end."""
    status = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)

        def say(**values: object) -> None:
            os.write(writer, json.dumps(values).encode() + b"\n")

        try:
            work(say)
            say(done=True)
            status = 0
        except Exception as error:  # an op's own, or a contract's: each is a line of the table
            say(error=str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}")
    finally:
        os._exit(status)


def _listen(reader: int, deadline: float) -> tuple[dict[str, Any], bool]:
    """Returns the child's reports until it ends, and whether the deadline came first.

    What the child has started may hold the pipe open after its end; then the deadline comes.
    """
    data = b""
    said: dict[str, Any] = {}
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left if left < math.inf else None)[0]:
            return said, not said.get("done")
        part = os.read(reader, 1 << 16)
        *lines, data = (data + part).split(b"\n")
        for line in lines:
            said |= json.loads(line)
        if not part:
            return said, False


def _problem(status: int, said: dict[str, Any]) -> str:
    if status < 0:
        return f"it was ended by signal {-status} ({signal.strsignal(-status)})"
    if "error" in said:
        return str(said["error"])
    return "" if said.get("done") else f"it ended the process with status {status}"


def _last_line(output: Any) -> str:
    output.seek(0, os.SEEK_END)
    output.seek(max(0, output.tell() - (1 << 16)))
    lines = [line.strip() for line in output.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:LONGEST_LINE] if lines else ""
