"""The progress of a long build: a line that is replaced, or a few lines if the stream cannot replace a line."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

log = logging.getLogger("opforge")
SILENT_SECONDS, REFRESH_SECONDS = 2.0, 0.5
"""When the line of a build appears, and how often it is replaced, on a terminal and in a notebook."""
SILENT_SECONDS_OF_LINES, SECONDS_BETWEEN_LINES = 10.0, 60.0
"""When the first line appears elsewhere, and when each further one does."""


class Place(Protocol):
    """Where a build is shown."""

    delays: tuple[float, float]
    """The seconds before the first text, and those between two."""

    def show(self, text: str) -> None:
        """Shows the text, in place of the one before if it can. Raises OSError or ValueError if the place is gone."""

    def end(self, text: str) -> None:
        """Removes the text that is shown, or adds that the build has ended."""


class BuildLine:
    """The progress of a long build on standard error.

    On a terminal it is one line, which is replaced as the build goes on and removed at its end. In a notebook it is one
    output, which is replaced and emptied. Elsewhere, as in a pipe, it is a line after ten seconds, one each minute and
    one at the end. It is for what this process builds: of a build that it waits for, the lock reports who has it.
    """

    def __init__(self, op: str, seconds: float) -> None:
        self._op, self._seconds, self._began = op, seconds, time.monotonic()
        self._count = ""
        self._is_shown, self._is_own = False, False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._place: Place | None = None

    def __enter__(self) -> BuildLine:
        self._place = _place()
        if self._place:
            self._thread = threading.Thread(target=self._run, args=(self._place,), daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no more threads can be started: the build is more important
                self._thread = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread:
            self._thread.join()
        if self._is_shown and self._place:
            seconds = f"{time.monotonic() - self._began:.0f} s"
            ended = f"built {self._op} in {seconds}" if error is None else f"{self._op} was not built, after {seconds}"
            _try(self._place.end, f"opforge: {ended}")

    def begins(self) -> None:
        """Notes that this process builds, and does not wait for another one."""
        self._began, self._is_own = time.monotonic(), True

    def step(self, done: int, total: int, title: str) -> None:
        """Notes how many steps of the build have ended."""
        self._count = f"{done} of {total} steps, "

    def _run(self, place: Place) -> None:
        delay, between = place.delays
        while not self._ended.wait(delay):
            if not self._is_own:
                continue  # many ranks may share a terminal, and wait for the one that builds
            delay, seconds = between, time.monotonic() - self._began
            about = f" of about {self._seconds:.0f} s" if self._seconds > seconds else ""
            text = f"opforge: building {self._op}: {self._count}{seconds:.0f} s{about}"
            if not _try(place.show, text):
                return
            self._is_shown = True


def _try(show: Callable[[str], None], text: str) -> bool:
    """Returns whether a text could be shown."""
    try:
        show(text)
    except (OSError, ValueError):  # the stream was closed meanwhile
        return False
    return True


def _place() -> Place | None:
    """Returns where builds are shown in this process. None if nobody sees it."""
    if sys.stderr is None:
        return None
    if sys.stderr.isatty():
        return TerminalLine()
    if "ipykernel" in sys.modules:
        from IPython.core.getipython import get_ipython

        if getattr(get_ipython(), "kernel", None) is not None:
            return NotebookOutput()
    return Lines() if log.isEnabledFor(logging.WARNING) else None


class TerminalLine:
    """A line of a terminal that is replaced, and removed at the end."""

    def __init__(self) -> None:
        self.delays = SILENT_SECONDS, REFRESH_SECONDS
        self._width = 0

    def show(self, text: str) -> None:
        """Replaces the line."""
        width = _columns() - 1  # a longer line would be wrapped, and each replacement would add a line
        text = text[:width]
        sys.stderr.write("\r" + text.ljust(min(self._width, width)))
        sys.stderr.flush()
        self._width = len(text)

    def end(self, text: str) -> None:
        """Removes the line."""
        self.show("")
        sys.stderr.write("\r")
        sys.stderr.flush()


class NotebookOutput:
    """An output of a notebook's cell that is replaced, and emptied at the end: a stream would keep each text."""

    def __init__(self) -> None:
        self.delays = SILENT_SECONDS, REFRESH_SECONDS
        self._output: Any = None

    def show(self, text: str) -> None:
        """Replaces the output."""
        from IPython.display import display

        content = {"text/plain": text}
        if self._output is None:
            self._output = display(content, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._output.update(content, raw=True)

    def end(self, text: str) -> None:
        """Empties the output."""
        self.show("")


class Lines:
    """Lines of a pipe or a file."""

    def __init__(self) -> None:
        self.delays = SILENT_SECONDS_OF_LINES, SECONDS_BETWEEN_LINES

    def show(self, text: str) -> None:
        """Adds a line."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    end = show


def _columns() -> int:
    """Returns the width of the terminal that standard error is; 80 if it is not known."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80
