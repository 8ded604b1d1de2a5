"""Processes of the torture of faults: each runs one command or one load, perhaps with too few resources."""

from __future__ import annotations

import errno
import faulthandler
import fcntl
import os
import resource
import shutil
import signal
import sys
import time
import traceback

from support import child_processes

MAX_SECONDS = 150.0
"""Seconds after which a process that has not ended counts as hanging. A build takes one, on a busy machine ten."""
MAX_OUTPUT = 1 << 20
"""Bytes that a process can print before it waits for a reader, which comes only once it has ended."""
UNEXPECTED = 70
"""The exit status of a child that ended by an exception."""
CAPABILITIES = "+dac_override,+dac_read_search"


class Victim:
    """A process that runs a command of opforge: `load OP` or the words of a command line.

    Args:
        words: The command.
        env: Changes to the environment.
        limit: The name of a limit, such as RLIMIT_NOFILE, and its value.
        is_forked: Whether the process is a fork of this one, which is ten times faster than a new Python.
    """

    def __init__(self, words: list[str], env: dict[str, str], limit: tuple[str, int] | None, is_forked: bool) -> None:
        self.words, self.limit, self.env = words, limit, env
        # Not a file: a limit of file sizes would make printing fail.
        self._output, self._input = os.pipe()
        os.set_blocking(self._output, False)
        fcntl.fcntl(self._output, fcntl.F_SETPIPE_SZ, MAX_OUTPUT)
        self._printed = b""
        self.began = time.monotonic()
        self.status: int | None = None
        self.is_hanging = False
        self.pid = os.fork()
        if not self.pid:
            self._run(is_forked)
        os.close(self._input)

    def _run(self, is_forked: bool) -> None:
        status = UNEXPECTED
        try:
            os.setsid()
            os.dup2(self._input, 1)
            os.dup2(self._input, 2)
            os.closerange(3, 1024)  # the other processes' pipes would count against a limit of open files
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.environ.update(self.env)
            faulthandler.register(signal.SIGUSR1, file=2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            prefix = _apply(self.limit)
            if prefix or not is_forked:
                os.execvpe(
                    (prefix or [sys.executable])[0],
                    [*prefix, sys.executable, os.path.abspath(__file__), *self.words],
                    child_processes.environment(PYTHONPATH=os.pathsep.join(sys.path)),
                )
            status = run(self.words)
            if "MODULES" in self.env:
                with open(self.env["MODULES"], "a") as file:
                    file.write("".join(f"{name}\n" for name in sys.modules))
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            status = UNEXPECTED
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            # Whatever happens, even if no memory is left to print it: the parent's code must not go on in this process,
            # because it ends with the removal of the folder that all others use.
            os._exit(status)

    def has_ended(self) -> bool:
        """Returns whether the process has ended. One that takes too long prints where it is, and is killed."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid and time.monotonic() - self.began > MAX_SECONDS:
            self.is_hanging = True
            os.kill(self.pid, signal.SIGUSR1)
            time.sleep(1)
            os.killpg(self.pid, signal.SIGKILL)
            pid, status = os.waitpid(self.pid, 0)
        if pid:
            self.status = os.waitstatus_to_exitcode(status)
        return bool(pid)

    def printed(self) -> str:
        """Returns what it printed so far."""
        while True:
            try:
                part = os.read(self._output, MAX_OUTPUT)
            except (BlockingIOError, ValueError):
                break
            if not part:
                break
            self._printed += part
        return self._printed.decode(errors="replace")

    def close(self) -> None:
        """Closes what it printed to."""
        os.close(self._output)


def _apply(limit: tuple[str, int] | None) -> list[str]:
    """Sets a limit on this process. Returns the words that must precede Python's: root is exempt from one limit."""
    if limit is None:
        return []
    name, value = limit
    if name == "RLIMIT_AS":
        with open("/proc/self/statm") as file:
            value += int(file.read().split()[0]) * resource.getpagesize()
    number = getattr(resource, name)
    resource.setrlimit(number, (value, resource.getrlimit(number)[1]))
    if name != "RLIMIT_NPROC" or os.geteuid() or not shutil.which("setpriv"):
        return []
    user = str(100_000 + os.getpid())
    words = ["setpriv", f"--reuid={user}", "--clear-groups"]
    return [*words, f"--inh-caps={CAPABILITIES}", f"--ambient-caps={CAPABILITIES}"]


def run(words: list[str]) -> int:
    """Runs a command in this process; returns its exit status."""
    from opforge.errors import OpforgeError

    try:
        if words[0] == "load":
            import torture_ops

            op = getattr(torture_ops, words[1])().load()
            print("VALUE", op.value(), op.origin)
            return 0
        from opforge.cli import build_ops, main

        sys.argv = [words[0], *words[1:]] if words[0] == "build-ops" else ["opforge", *words]
        (build_ops if words[0] == "build-ops" else main)()
    except OpforgeError as error:
        print("REFUSED", type(error).__name__, error)
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
