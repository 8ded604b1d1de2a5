"""What a program notices of a build that it waits for: how long it takes, and whether it may begin."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from opforge.cache.maintenance import listing
from opforge.errors import BuildForbiddenError

if TYPE_CHECKING:
    from opforge.builders.spec.build_plan import BuildPlan
    from opforge.cache.layout import Layout

log = logging.getLogger("opforge")
UNIT_SECONDS = 3.0
"""How long one source takes for one architecture, if there was no earlier build: only the ratios between ops count."""
SILENT_SECONDS, REFRESH_SECONDS = 2.0, 0.5
"""When the line of a build appears, and how often it is replaced."""
_forbidding: list[object] = []
"""The `no_builds` scopes that this process is in."""


class no_builds:
    """A scope in which an op that is not built yet is an error, in all threads: `with opforge.no_builds():`.

    Entering it costs nothing. Raises BuildForbiddenError where a build would begin. Ops that are loaded, or stored,
    are used as ever.
    """

    def __enter__(self) -> None:
        _forbidding.append(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _forbidding.remove(self)


def are_builds_forbidden() -> bool:
    """Returns whether this process is in a `no_builds` scope."""
    return bool(_forbidding)


def check_builds_are_allowed(op: str, rejected: Iterable[object]) -> None:
    """Raises BuildForbiddenError within a `no_builds` scope. `rejected` are the stored entries that do not fit."""
    if _forbidding:
        raise BuildForbiddenError(op, [*map(str, rejected)])


def weights(plans: Iterable[BuildPlan], layout: Layout) -> list[float]:
    """Returns the expected seconds of each plan's build: what it took before, or by how much there is to compile."""
    took: dict[tuple[str, str], float] = {}
    for entry in listing.entries(layout):
        took[entry.op, entry.target] = max(entry.seconds, took.get((entry.op, entry.target), 0.0))
    expected = []
    for plan in plans:
        parts = len(plan.sources) * len(plan.target.partition(":")[2].split("+"))
        expected.append(took.get((plan.op, plan.target)) or UNIT_SECONDS * parts)
    return expected


def warn_if_ranks_wait(op: str, seconds: float) -> None:
    """Logs a warning if torch.distributed is initialised: the other ranks wait in a collective for this build."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        text = (
            "%s: a build of about %.0f s begins while torch.distributed is initialised. The other ranks wait for this"
            " one in their next collective, and may time out. Build it before, with opforge.prepare or build-ops"
        )
        log.warning(text, op, seconds)


class BuildLine:
    """One line on standard error for a build that takes long, which is replaced as it goes on and removed at its end.

    It is shown on a terminal and in a notebook, after SILENT_SECONDS. In a pipe nothing is printed.
    """

    def __init__(self, op: str, seconds: float) -> None:
        self._op, self._seconds, self._began = op, seconds, time.monotonic()
        self._count, self._width = "", 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> BuildLine:
        if sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules):
            self._thread = threading.Thread(target=self._run, daemon=True)
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
        if self._width:
            self._print("")
            sys.stderr.write("\r")
            sys.stderr.flush()

    def step(self, done: int, total: int, title: str) -> None:
        """Notes how many steps of the build have ended."""
        self._count = f"{done} of {total} steps, "

    def _run(self) -> None:
        delay = SILENT_SECONDS
        while not self._ended.wait(delay):
            seconds = time.monotonic() - self._began
            about = f" of about {self._seconds:.0f} s" if self._seconds > seconds else ""
            self._print(f"opforge: building {self._op}: {self._count}{seconds:.0f} s{about}")
            delay = REFRESH_SECONDS

    def _print(self, text: str) -> None:
        width = _columns() - 1  # a longer line would be wrapped, and each replacement would add a line
        text = text[:width]
        try:
            sys.stderr.write("\r" + text.ljust(min(self._width, width)))
            sys.stderr.flush()
        except (OSError, ValueError):
            return  # the stream was closed meanwhile
        self._width = len(text)


def _columns() -> int:
    """Returns the width of the terminal that standard error is; a large number if it is none, as in a notebook."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 1000
