"""Runs the steps of a build: writes a build file, runs ninja under the supervisor, reports progress.

Nothing else runs compilers, apart from probes.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import NamedTuple

from opforge.builders.declaration.build_plan import Step
from opforge.builders.resources import exhausted_resource
from opforge.cache.held import handles
from opforge.errors import BuilderError, ToolchainError, ToolchainNotFoundError
from opforge.foundation.environment import COMPILER_VARIABLES
from opforge.foundation.files import MAX_RECORD_BYTES, read_file

from . import jobserver, timeline
from .supervisor import NOT_STARTED

Progress = Callable[[int, int, str], None]
"""Called with the number of steps done, the number of all steps, and the title of the step that has just ended."""
LONGEST_COMMAND = 100_000
"""The number of characters of a command from which on its objects are named in a file: Linux takes 128 KiB in a word,
and ninja gives a shell the whole command as one."""
RESPONSE_SUFFIX = ".objects"
LINE_BREAK = re.compile("[\n\r\0]")
"""The characters that ninja or the system cannot take in a command."""
STATUS = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")
CACHE_ENV = {"CCACHE_NODIRECT": "1"}
"""Makes ccache run the preprocessor. From its list of the headers that an object was compiled from it does not see that
another one is found first now, or that __has_include has another answer."""
CHOICES_OF_CCACHE = ("CCACHE_COMPILER", "CCACHE_CC")
"""Variables that make ccache start another compiler than the one of the command."""
_NONE: Mapping[str, str] = {}
PLAIN_OUTPUT_ENV = {"NINJA_STATUS": "[%f/%t] ", "LC_ALL": "C", "CLICOLOR_FORCE": "0"}
"""Variables that give ninja's and the compilers' output the form that is parsed here. ninja removes all colours."""
REMOTE_COMPILERS = frozenset({"distcc", "icecc"})
"""Programs that wait for the compiler of another machine, and end that wait themselves."""
MAX_REMOTE_SECONDS = 600
"""How long one of them is taken to wait for work, and not for nothing. distcc's own limit is five minutes."""
_sessions: set[int] = set()
"""The sessions of the builds that this process runs, each the process number of its supervisor."""
_steps: list[str] = []
"""The titles of the steps that have ended in this process."""


class Outcome(NamedTuple):
    """How a build ended: ninja's exit status (128 + signal if it was killed) and everything that was printed."""

    status: int
    output: str


def find_ninja() -> str:
    """Returns the path of ninja: beside this Python, or from PATH. Raises ToolchainNotFoundError."""
    beside = os.path.join(sysconfig.get_path("scripts"), "ninja")
    # What this process may start: without effective_ids capabilities do not count, as for root's home as another user.
    can_start = os.access(beside, os.X_OK, effective_ids=os.access in os.supports_effective_ids)
    path = beside if can_start else shutil.which("ninja")
    if path is None:
        raise ToolchainNotFoundError("ninja", [beside, "ninja on PATH"], "Install it: pip install ninja.")
    return path


def _python() -> str:
    """Returns the Python that runs the supervisor. In a program that embeds Python, it is the installation's own.

    Raises ToolchainNotFoundError.
    """
    if sys.executable:
        return sys.executable
    major, minor = sys.version_info[:2]
    path = os.path.join(sys.base_exec_prefix, "bin", f"python{major}.{minor}")
    if not os.access(path, os.X_OK):
        raise ToolchainNotFoundError("Python program", ["sys.executable", path], "Set sys.executable to its path.")
    return path


def _escaped(text: str) -> str:
    """Returns a path as ninja spells it."""
    return re.sub(r"([$ :\n])", r"$\1", text)


def write_build_file(folder: str, steps: Sequence[Step], heavy: Collection[str] = (), depth: int = 1) -> None:
    """Writes build.ninja: one rule, and one statement for each step.

    Of the steps with the outputs `heavy`, no more than `depth` run at once. Raises BuilderError if a command has a line
    break.
    """
    lines = ["ninja_required_version = 1.5", "pool heavy", f"  depth = {depth}", ""]
    lines += ["rule run", "  command = $argv", "  description = $title", ""]
    for step in steps:
        # Only the outputs of other steps are listed, for the order: ninja cannot spell some names of sources.
        inputs = " ".join(_escaped(name) for name in step.inputs if not os.path.isabs(name))
        if (broken := next(filter(LINE_BREAK.search, step.argv), None)) is not None:
            raise BuilderError(step.title, f"{broken!r} has a line break", "Rename it, or remove the line break")
        lines += [
            f"build {_escaped(step.output)}: run {inputs}",
            "  argv = " + shlex.join(_within_limits(folder, step)).replace("$", "$$"),
            f"  title = {step.title.replace('$', '$$')}",
            *(["  pool = heavy"] if step.output in heavy else []),
        ]
    with open(os.path.join(folder, "build.ninja"), "wb") as file:
        file.write(os.fsencode("\n".join(lines) + "\n"))


def _within_limits(folder: str, step: Step) -> Sequence[str]:
    """Returns a step's command, with its objects in a response file if it would be longer than the system accepts."""
    objects = {name for name in step.inputs if name.endswith(".o")}
    if step.unit or not objects or sum(len(word) + 3 for word in step.argv) < LONGEST_COMMAND:
        return step.argv
    first = next(number for number, word in enumerate(step.argv) if word in objects)
    response = step.output + RESPONSE_SUFFIX
    with open(os.path.join(folder, response), "wb") as file:
        # The linker's driver reads words as a shell does, but knows no `$`.
        quoted = (re.sub(r"([\s\\'\"])", r"\\\1", word) for word in step.argv if word in objects)
        file.write(os.fsencode("\n".join(quoted) + "\n"))
    others = (word for word in step.argv[first:] if word not in objects)
    return (*step.argv[:first], f"@{response}", *others)


def run(
    folder: str,
    jobs: int,
    on_progress: Progress | None = None,
    targets: Sequence[str] = (),
    share: int = 0,
    known: Mapping[str, str] = _NONE,
) -> Outcome:
    """Runs the build in `folder`, with at most `jobs` compilers at once, or with the tokens of the jobserver in use.

    The caller's working folder and environment are not changed. If this process dies, or an exception leaves this call,
    every compiler of the build is killed.

    Args:
        folder: Where build.ninja is.
        jobs: How many compilers run at once.
        on_progress: Is called after each step.
        targets: The outputs to make; by default all.
        share: With a jobserver: the number of tokens to hold while `jobs` compilers run, because each of them needs
            more memory than a token stands for. With 0 each compiler takes a token.
        known: The variables in the plan's key. Compilers get them as they were then: another thread may change them
            while this one waits for a lock. A launcher changes no result: another compiler than the command's is
            started only if the variable that names it is among them.
    """
    server, wanted = jobserver.current(), ("--", *map(_escaped_target, targets)) if targets else ()
    names = {*COMPILER_VARIABLES, *CHOICES_OF_CCACHE}
    variables = {name: value for name, value in os.environ.items() if name not in names} | {**known}
    variables.setdefault("PATH", os.defpath)  # where this process has looked: gcc finds no linker without one
    if server is None:
        return _run(folder, ("-j", str(jobs), *wanted), variables, on_progress, None)
    began = time.time()
    with server.token(max(1, share)):
        timeline.mark("wait for a free compiler", began)
        if share:
            return _run(folder, ("-j", str(jobs), *wanted), variables, on_progress, server)
        return _run(folder, (*server.arguments, *wanted), {**variables, **server.environment}, on_progress, server)


def _escaped_target(name: str) -> str:
    """Returns an output as ninja takes it on its command line, where `^` stands for what a source leads to."""
    return f"./{name}"


def _run(
    folder: str,
    jobs: Sequence[str],
    environment: Mapping[str, str],
    on_progress: Progress | None,
    server: jobserver.Jobserver | None,
) -> Outcome:
    supervisor = os.path.join(os.path.dirname(os.path.abspath(__file__)), "supervisor.py")
    peak = os.path.join(folder, "peak")
    command = [_python(), "-I", "-S", supervisor, peak, find_ninja(), "-C", folder, *jobs]
    try:
        process = subprocess.Popen(
            command,
            env={**environment, **PLAIN_OUTPUT_ENV, **CACHE_ENV, "TMPDIR": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            pass_fds=handles(folder),
        )
    except OSError as error:
        if error.errno in (errno.EACCES, errno.ENOENT, errno.ENOEXEC, errno.EPERM):
            raise _not_started(command[0], f"{command[0]}: {error.strerror}") from error
        raise
    _sessions.add(process.pid)
    try:
        with server.watch(process) if server else nullcontext():
            outcome = _follow(process, on_progress)
    finally:
        _sessions.discard(process.pid)
    if outcome.output.startswith(NOT_STARTED) and not exhausted_resource("", outcome.output):
        raise _not_started(find_ninja(), outcome.output.removeprefix(NOT_STARTED).strip())
    return outcome


def _not_started(program: str, problem: str) -> ToolchainError:
    """Returns the error for a program that runs builds and cannot be started. `problem` begins with a path."""
    if problem.startswith(os.devnull):
        advice = "Give this system, or its container, a /dev with `null` in it"
    else:
        advice = "Reinstall it (ninja: pip install --force-reinstall ninja), or give yourself access to it"
    return ToolchainError(program, f"it cannot be started ({problem})", f"{advice}.")


def _follow(process: subprocess.Popen[str], on_progress: Progress | None) -> Outcome:
    """Reads the output to its end, and reports progress. Makes the supervisor end the build if it is left early."""
    output = []
    assert process.stdout is not None and process.stdin is not None
    try:
        for line in process.stdout:
            if line.startswith("ninja: Jobserver mode detected"):
                continue
            output.append(line)
            step = STATUS.match(line)
            if step:
                _steps.append(step[3])
            if step and on_progress:
                on_progress(int(step[1]), int(step[2]), step[3])
        status = process.wait()
        if status == 0 and any(line.startswith("FAILED:") for line in output):
            status = 1  # if SIGCHLD is ignored, or other code reaps every child, wait() returns 0 for lack of a status
        return Outcome(status if status >= 0 else 128 - status, "".join(output))
    finally:
        with suppress(BrokenPipeError):
            # The newline makes the supervisor kill the build. Closing the pipe is not enough: a worker that was forked
            # meanwhile holds it open.
            if process.returncode is None:  # a write to a process that has ended is SIGPIPE, at which gdb stops
                process.stdin.write("\n")
            process.stdin.close()
        process.stdout.close()
        process.wait()


def progress() -> int:
    """Returns a number that changes while builds of this process get on, and stays while all of them hang.

    It counts the steps that have ended, the seconds of processor time of the compilers that run, and those for which
    one has run that waits for another machine.
    """
    second = os.sysconf("SC_CLK_TCK")
    ticks, sessions = 0, {str(session).encode(): session for session in [*_sessions]}
    for name in os.listdir("/proc") if sessions else ():
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # no process, or it has ended
        if fields[3] in sessions and name.encode() not in sessions:  # the supervisor itself runs ten times a second
            ticks += sum(map(int, fields[11:15]))  # its own, and those of what it has waited for
            if _is_remote_compiler(name):
                age = int(time.clock_gettime(time.CLOCK_BOOTTIME) * second) - int(fields[19])
                ticks += min(age, MAX_REMOTE_SECONDS * second)
    return len(_steps) + ticks // second


def _is_remote_compiler(pid: str) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")) in REMOTE_COMPILERS
    except OSError:
        return False


def measured(folder: str) -> dict[str, int]:
    """Returns the most memory that each command of the last run in `folder` used, in bytes by the name of its output.

    Those that ended within a tenth of a second are missing.
    """
    try:
        lines = (
            read_file(os.path.join(folder, "peaks"), MAX_RECORD_BYTES).decode("utf-8", "surrogateescape").split("\n")
        )
    except (OSError, ValueError):
        return {}
    pairs = (line.partition(" ") for line in lines)
    return {output: int(peak) for peak, _, output in pairs if peak.isdecimal() and output}


def peak_memory(folder: str) -> int:
    """Returns the most memory that one process of the build in `folder` used, in bytes; 0 if it is not known."""
    return read_peak(os.path.join(folder, "peak"))


def read_peak(path: str) -> int:
    """Returns the bytes of memory that a file states; 0 if it states none."""
    try:
        return int(read_file(path, 100))
    except (OSError, ValueError):
        return 0
