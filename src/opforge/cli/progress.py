"""Progress of builds: bars on a terminal, lines in a pipe, nothing with --json. All of it goes to standard error."""

from __future__ import annotations

import sys
import time
from collections import Counter
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from . import messages
from .output import console_of, is_terminal, time_text

if TYPE_CHECKING:
    from rich.progress import TaskID


INSTANT_PREFIX = "name "
"""The titles of steps that only name a library to link with begin so. These steps take no time."""


class Reporter:
    """Receives the progress of every op, and prints nothing.

    Several ops may be in progress at once, each in a thread of its own.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def begin(self, label: str, weight: float = 1.0) -> None:
        """Reports that an op begins. `weight` is its expected duration, in any unit that all ops share."""

    def step(self, label: str, done: int, total: int, title: str) -> None:
        """Reports that a step of the op has ended."""

    def end(self, label: str, state: str) -> None:
        """Reports that the op has ended, with its state: built, cached, failed, ..."""


class Lines(Reporter):
    """A reporter that prints one line a step."""

    def step(self, label: str, done: int, total: int, title: str) -> None:
        """Prints the line."""
        click.echo(f"{label}: [{done}/{total}] {title}", err=True)


class TimeEstimate:
    """The part of the work that is done, by weight, and the time that the rest takes at the same speed."""

    def __init__(self, total: float) -> None:
        self._total, self._began = total, time.monotonic()
        self._ops: dict[str, tuple[float, float]] = {}
        """The weight of each op and the fraction of it that is done. Each op's thread replaces the pair at once."""

    def begin(self, label: str, weight: float) -> None:
        """Adds an op of this weight."""
        self._ops[label] = weight, 0.0

    def step(self, label: str, fraction: float) -> None:
        """Sets how much of the op is done, from 0 to 1."""
        self._ops[label] = self._ops[label][0], fraction

    def end(self, label: str) -> None:
        """Marks the op as done."""
        self.step(label, 1.0)

    @property
    def done(self) -> float:
        """The weight of all work that is done, at most `total`."""
        return min(self._total, sum(weight * fraction for weight, fraction in list(self._ops.values())))

    def seconds_left(self) -> float | None:
        """Returns the seconds that the rest takes. None until something is done."""
        done = self.done
        return (time.monotonic() - self._began) * (self._total - done) / done if done else None


class Bars(Reporter):
    """A reporter with a bar for each op in progress and, if there are several, one for all with the time left."""

    def __init__(self, ops: int, total: float) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[count]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[title]}", style="dim", markup=False),
        )
        self._bars = Progress(*columns, console=console_of(sys.stderr), transient=True)
        self.estimate, self._total, self._ops, self._count = TimeEstimate(total), total, ops, 0
        self._all: TaskID | None = None
        self._rows: dict[str, TaskID] = {}
        self._instant: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._bars.start()
        if self._ops > 1:
            self._all = self._bars.add_task("all ops", total=self._total, title="", count=f"0/{self._ops}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, label: str, weight: float = 1.0) -> None:
        """Adds the op's bar. Its length is not known before its first step."""
        self.estimate.begin(label, weight)
        self._rows[label] = self._bars.add_task(label, total=None, title="looking it up", count="")

    def step(self, label: str, done: int, total: int, title: str) -> None:
        """Advances the op's bar and the bar for all."""
        self._bars.update(self._rows[label], completed=done, total=total, title=title, count=f"{done}/{total}")
        self._instant[label] += title.startswith(INSTANT_PREFIX)
        instant = self._instant[label]
        self.estimate.step(label, (done - instant) / max(1, total - instant))
        self._update_all()

    def end(self, label: str, state: str) -> None:
        """Removes the op's bar, or fills it if it is the only one, and advances the bar for all."""
        self._count += 1
        self.estimate.end(label)
        row = self._rows.pop(label)
        if self._all is None:
            self._bars.update(row, total=1, completed=1, title=state)
        else:
            self._bars.remove_task(row)
        self._update_all()

    def _update_all(self) -> None:
        if self._all is not None:
            left = self.estimate.seconds_left()
            title = "" if left is None else f"{time_text(left)} left"
            count = f"{self._count}/{self._ops}"
            self._bars.update(self._all, completed=self.estimate.done, title=title, count=count)


def reporter(ops: int, quiet: bool, total: float = 0.0) -> Reporter:
    """Returns the reporter that suits standard error, for this many ops with this weight together."""
    if quiet or messages.verbosity() == messages.QUIET:
        return Reporter()
    return Bars(ops, total or ops) if is_terminal(sys.stderr) else Lines()
