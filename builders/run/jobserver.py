"""How many compilers run at once over several builds: a GNU make jobserver, which every ninja of the run draws from."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType

from opforge.versions import version_of

JOBSERVER_SINCE = (1, 13)
"""The ninja that can be a jobserver's client."""
POLL_SECONDS = 0.1
_current: ContextVar[Jobserver | None] = ContextVar("budget", default=None)


class Jobserver:
    """`slots` compilers at once, however many builds share it; `stop()` ends them all.

    Each build takes one token for the compiler that its ninja may always run, and ninja takes one more for each further
    one. A ninja that knows no jobserver gets all the slots, and the builds take turns.
    """

    def __init__(self, slots: int, ninja: str) -> None:
        self.slots, self.stopped = slots, False
        told = subprocess.run([ninja, "--version"], capture_output=True, text=True, check=False).stdout
        self._folder = tempfile.mkdtemp(prefix="opforge-jobs-")
        told_apart = len(self._folder.split()) == 1  # the variable that names it is a list of words
        self._shared = told_apart and version_of(told.strip())[:2] >= JOBSERVER_SINCE
        self._path = os.path.join(self._folder, "tokens")
        os.mkfifo(self._path, 0o600)
        # Open for both ends, so that it neither blocks nor ends; without blocking, for ninja may be first at a token.
        self._tokens = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        os.write(self._tokens, b"+" * (slots if self._shared else 1))
        self._running: set[subprocess.Popen[str]] = set()

    def __enter__(self) -> Jobserver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._tokens)

    @property
    def arguments(self) -> tuple[str, ...]:
        """What ninja is told about how many compilers to run: nothing where the jobserver tells it."""
        return () if self._shared else ("-j", str(self.slots))

    @property
    def environment(self) -> dict[str, str]:
        """The variable by which ninja knows the jobserver."""
        return {"MAKEFLAGS": f"--jobserver-auth=fifo:{self._path}"} if self._shared else {}

    @contextmanager
    def token(self) -> Iterator[None]:
        """Hold one token, waiting for it. Raises KeyboardInterrupt where the run was stopped meanwhile."""
        token = b""
        while not token:
            if self.stopped:
                raise KeyboardInterrupt
            select.select([self._tokens], [], [], POLL_SECONDS)
            try:
                token = os.read(self._tokens, 1)
            except BlockingIOError:
                continue
        try:
            yield
        finally:
            os.write(self._tokens, token)

    @contextmanager
    def watch(self, process: subprocess.Popen[str]) -> Iterator[None]:
        """Have this build's supervisor ended by `stop()`. Raises KeyboardInterrupt where that has happened."""
        self._running.add(process)
        try:
            if self.stopped:
                _end(process)
            yield
        finally:
            self._running.discard(process)
        if self.stopped:
            raise KeyboardInterrupt  # its build failed for no fault of its own: nobody is to be told that it did

    def stop(self) -> None:
        """End every compiler of every build, and let none start; each build ends with KeyboardInterrupt."""
        self.stopped = True
        for process in list(self._running):
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """Give a supervisor the sign to end its build; it may have ended already."""
    try:
        if process.stdin is not None:
            os.write(process.stdin.fileno(), b"\n")
    except (OSError, ValueError):
        return


def current() -> Jobserver | None:
    """The budget of this thread's builds, or None where each has its own number of jobs."""
    return _current.get()


def use(budget: Jobserver | None) -> None:
    """Let the builds of this thread draw from `budget`, until it says otherwise."""
    _current.set(budget)
