"""A GNU make jobserver: bounds the number of compilers that run at once over several builds."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from types import TracebackType

from opforge.foundation.versions import version_of

JOBSERVER_SINCE = (1, 13)
"""The first version of ninja that can be a client of a jobserver."""
POLL_SECONDS = 0.1
_current: ContextVar[Jobserver | None] = ContextVar("jobserver", default=None)


class Jobserver:
    """Tokens for `slots` compilers, however many builds share them; `stop()` ends all builds.

    Each build takes a token for the compiler that its ninja may always run; ninja takes one for each further compiler.
    A ninja that is no client of a jobserver gets all slots: then one build runs at a time.
    """

    def __init__(self, slots: int, ninja: str, is_chosen: bool = False) -> None:
        """Takes the number of compilers; with `is_chosen` the user has chosen it, whatever memory they need."""
        self.slots, self.stopped, self.is_chosen = slots, False, is_chosen
        version = subprocess.run([ninja, "--version"], capture_output=True, text=True, check=False).stdout
        self.folder = tempfile.mkdtemp(prefix="opforge-jobs-")
        """The folder of the named pipe; it is deleted at the end."""
        one_word = len(self.folder.split()) == 1  # MAKEFLAGS is a list of words: a space would cut the path
        self._shared = one_word and version_of(version.strip())[:2] >= JOBSERVER_SINCE
        self._path = os.path.join(self.folder, "tokens")
        os.mkfifo(self._path, 0o600)
        # Open at both ends, so that opening does not block and reading finds no end. Non-blocking: a ninja may take the
        # token that `select` has just reported.
        self._tokens = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        os.write(self._tokens, b"+" * (slots if self._shared else 1))
        self._running: set[subprocess.Popen[str]] = set()
        self._takes_several = threading.Lock()

    def __enter__(self) -> Jobserver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._tokens)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments that bound the number of compilers; none if ninja takes tokens."""
        return () if self._shared else ("-j", str(self.slots))

    @property
    def environment(self) -> dict[str, str]:
        """The variable that names the jobserver to ninja; none if ninja takes no tokens."""
        return {"MAKEFLAGS": f"--jobserver-auth=fifo:{self._path}"} if self._shared else {}

    @contextmanager
    def token(self, count: int = 1) -> Iterator[None]:
        """Waits for a token, or for `count` of them, and holds them. All if there are not so many.

        Raises KeyboardInterrupt if `stop` is called meanwhile.
        """
        count = min(count, self.slots) if self._shared else 1
        held = b""
        try:
            # Two builds that each hold some and wait for more would wait for ever.
            with self._takes_several if count > 1 else nullcontext():
                while len(held) < count:
                    if self.stopped:
                        raise KeyboardInterrupt
                    select.select([self._tokens], [], [], POLL_SECONDS)
                    with suppress(BlockingIOError):
                        held += os.read(self._tokens, count - len(held))
            yield
        finally:
            if held:
                os.write(self._tokens, held)

    @contextmanager
    def watch(self, process: subprocess.Popen[str]) -> Iterator[None]:
        """Lets `stop` end this build's supervisor. Raises KeyboardInterrupt at the end if it did."""
        self._running.add(process)
        try:
            if self.stopped:
                _end(process)
            yield
        finally:
            self._running.discard(process)
        if self.stopped:
            raise KeyboardInterrupt  # the build did not fail by itself: those that wait for it must not get an error

    def stop(self) -> None:
        """Ends every compiler of every build, and lets none start. Each build ends with KeyboardInterrupt."""
        self.stopped = True
        for process in list(self._running):
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """Makes a supervisor end its build; it may have ended already."""
    with suppress(OSError, ValueError):
        if process.stdin is not None:
            os.write(process.stdin.fileno(), b"\n")


def current() -> Jobserver | None:
    """Returns the jobserver of this thread's builds, or None if each build has its own number of jobs."""
    return _current.get()


def use(jobserver: Jobserver | None) -> None:
    """Makes the builds of this thread take tokens from `jobserver`, until the next call."""
    _current.set(jobserver)
