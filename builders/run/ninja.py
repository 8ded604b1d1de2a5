"""The only thing that runs compilers: writes a build file, runs ninja under the supervisor, reports progress."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import NamedTuple

from opforge.builders.spec.build_plan import Step
from opforge.errors import BuilderError, ToolchainNotFoundError

from . import jobserver, timeline

Progress = Callable[[int, int, str], None]
"""Called with steps done, steps in all, and the title of the step that has ended."""
BREAKS = re.compile("[\n\r\0]")
"""What ends a line, for ninja or for the system."""
STATUS = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")


PLAIN_OUTPUT_ENV = {"NINJA_STATUS": "[%f/%t] ", "LC_ALL": "C", "CLICOLOR_FORCE": "0"}
"""What makes ninja and the compilers speak so that they are understood; ninja then takes colours out of all of it."""


class Outcome(NamedTuple):
    """How a build ended: ninja's exit status (128 + signal if it was killed) and all that was printed."""

    status: int
    output: str


def find_ninja() -> str:
    """The path of ninja: the one beside this Python first. Raises ToolchainNotFoundError."""
    beside = os.path.join(sysconfig.get_path("scripts"), "ninja")
    found = beside if os.access(beside, os.X_OK) else shutil.which("ninja")
    if found is None:
        raise ToolchainNotFoundError("ninja", [beside, "ninja on PATH"], "Install it: pip install ninja.")
    return found


def _python() -> str:
    """The Python that runs the supervisor: this one, or where it is part of another program the one it belongs to."""
    if sys.executable:
        return sys.executable
    major, minor = sys.version_info[:2]
    found = os.path.join(sys.base_exec_prefix, "bin", f"python{major}.{minor}")
    if not os.access(found, os.X_OK):
        raise ToolchainNotFoundError("Python program", ["sys.executable", found], "Set sys.executable to its path.")
    return found


def _escaped(text: str) -> str:
    return re.sub(r"([$ :\n])", r"$\1", text)


def _broken(argv: Sequence[str]) -> str:
    return next(word for word in argv if BREAKS.search(word))


def write_build_file(folder: str, steps: Sequence[Step]) -> None:
    """Write build.ninja: one rule, and one statement a step. Raises BuilderError for what ninja cannot be told."""
    lines = ["ninja_required_version = 1.5", "rule run", "  command = $argv", "  description = $title", ""]
    for step in steps:
        # What another step makes decides the order; of a source ninja need not know, and some names it cannot spell.
        inputs = " ".join(_escaped(name) for name in step.inputs if not os.path.isabs(name))
        if BREAKS.search("".join(step.argv)):
            raise BuilderError(step.title, f"{_broken(step.argv)!r} has a line break", "Rename it, or leave that out")
        lines += [
            f"build {_escaped(step.output)}: run {inputs}",
            "  argv = " + shlex.join(step.argv).replace("$", "$$"),
            f"  title = {step.title.replace('$', '$$')}",
        ]
    with open(os.path.join(folder, "build.ninja"), "wb") as file:
        file.write(os.fsencode("\n".join(lines) + "\n"))


def run(folder: str, jobs: int, on_progress: Progress | None = None) -> Outcome:
    """Run the build in `folder`, at most `jobs` compilers at once, or as many as the budget in use still has.

    The caller's folder and environment stay untouched. If this process dies, or this call is left by an exception,
    every compiler of the build ends with it.
    """
    shared = jobserver.current()
    if shared is None:
        return _run(folder, ("-j", str(jobs)), {}, on_progress, None)
    asked = time.time()
    with shared.token():
        timeline.mark("wait for a free compiler", asked)
        return _run(folder, shared.arguments, shared.environment, on_progress, shared)


def _run(
    folder: str,
    jobs: Sequence[str],
    environment: Mapping[str, str],
    on_progress: Progress | None,
    shared: jobserver.Jobserver | None,
) -> Outcome:
    supervisor = os.path.join(os.path.dirname(os.path.abspath(__file__)), "supervisor.py")
    peak = os.path.join(folder, "peak")
    command = [_python(), "-I", "-S", supervisor, peak, find_ninja(), "-C", folder, *jobs]
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment, **PLAIN_OUTPUT_ENV, "TMPDIR": folder},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    with shared.watch(process) if shared else nullcontext():
        return _follow(process, on_progress)


def _follow(process: subprocess.Popen[str], on_progress: Progress | None) -> Outcome:
    printed = []
    assert process.stdout is not None and process.stdin is not None
    try:
        for line in process.stdout:
            if line.startswith("ninja: Jobserver mode detected"):
                continue
            printed.append(line)
            step = STATUS.match(line)
            if step and on_progress:
                on_progress(int(step[1]), int(step[2]), step[3])
        status = process.wait()
        if status == 0 and any(line.startswith("FAILED:") for line in printed):
            status = 1  # where SIGCHLD is ignored, or somebody else reaps every child, wait() knows none and says 0
        return Outcome(status if status >= 0 else 128 - status, "".join(printed))
    finally:
        try:
            # The supervisor's sign to end everything, if it has not ended by itself. Closing alone would not do: a
            # worker that was forked meanwhile holds the pipe open.
            if process.returncode is None:  # a write to one that has ended is SIGPIPE, at which gdb stops
                process.stdin.write("\n")
            process.stdin.close()
        except BrokenPipeError:
            pass
        process.stdout.close()
        process.wait()


def peak_memory(folder: str) -> int:
    """The most memory that one process of the build in `folder` took, in bytes; 0 where that is not known."""
    try:
        with open(os.path.join(folder, "peak"), encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0
