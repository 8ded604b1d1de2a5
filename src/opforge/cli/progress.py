"""How far a build is: bars on a terminal, lines in a pipe, nothing beside JSON. All of it goes to standard error."""

from __future__ import annotations

import sys
import time
from collections import Counter
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

import click

from .output import is_terminal, time_text

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


INSTANT = "name "
"""How the titles of those steps begin that only name a library to link with: no time goes by in them."""


class Reporter(Protocol):
    """Hears of every op and of every step that ends. Several ops may be under way, each in a thread of its own."""

    def __enter__(self) -> Reporter: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def begin(self, label: str, weight: float = 1.0) -> None:
        """An op is next. `weight` is how long it may take, in any unit that all of them share."""

    def step(self, label: str, done: int, total: int, title: str) -> None:
        """A step of it has ended."""

    def end(self, label: str, state: str) -> None:
        """The op is done: built, cached, failed, ..."""


class Silent:
    """Says nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def begin(self, label: str, weight: float = 1.0) -> None:
        """Nothing."""

    def step(self, label: str, done: int, total: int, title: str) -> None:
        """Nothing."""

    def end(self, label: str, state: str) -> None:
        """Nothing."""


class Lines(Silent):
    """One line a step."""

    def step(self, label: str, done: int, total: int, title: str) -> None:
        """Write the line."""
        click.echo(f"{label}: [{done}/{total}] {title}", err=True)


class Outlook:
    """How much of the work is done, by weight, and how long the rest takes if it goes on as it has gone so far."""

    def __init__(self, total: float) -> None:
        self._total, self._began = total, time.monotonic()
        self._ops: dict[str, tuple[float, float]] = {}
        """Of each op its weight and how much of it, of 1, is done: set at once, for every op has a thread."""

    def begin(self, label: str, weight: float) -> None:
        """An op of this weight has begun."""
        self._ops[label] = weight, 0.0

    def step(self, label: str, share: float) -> None:
        """So large a share of it, of 1, is done."""
        self._ops[label] = self._ops[label][0], share

    def end(self, label: str) -> None:
        """It is done."""
        self.step(label, 1.0)

    @property
    def done(self) -> float:
        """The weight of all that is done, of `total`."""
        return min(self._total, sum(weight * share for weight, share in list(self._ops.values())))

    def seconds_left(self) -> float | None:
        """None until something is done."""
        done = self.done
        return (time.monotonic() - self._began) * (self._total - done) / done if done else None


class Bars(Silent):
    """One bar an op, and above them one for all, with the time that is left."""

    def __init__(self, ops: int, total: float) -> None:
        self._ops, self._outlook = ops, Outlook(total)
        self._bars: Progress | None = None
        self._all: TaskID | None = None
        self._rows: dict[str, TaskID] = {}
        self._instant: Counter[str] = Counter()
        self._total = total
        self._count = 0

    def __enter__(self) -> Bars:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[count]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[title]}", style="dim", markup=False),
        )
        self._bars = Progress(*columns, console=Console(stderr=True), transient=True)
        self._bars.start()
        if self._ops > 1:
            self._all = self._bars.add_task("all ops", total=self._total, title="", count=f"0/{self._ops}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars:
            self._bars.stop()

    def begin(self, label: str, weight: float = 1.0) -> None:
        """Add the op's bar; its length is known with its first step."""
        if self._bars:
            self._outlook.begin(label, weight)
            self._rows[label] = self._bars.add_task(label, total=None, title="looking it up", count="")

    def step(self, label: str, done: int, total: int, title: str) -> None:
        """Move the op's bar, and the one for all."""
        if self._bars:
            self._bars.update(self._rows[label], completed=done, total=total, title=title, count=f"{done}/{total}")
            self._instant[label] += title.startswith(INSTANT)
            instant = self._instant[label]
            self._outlook.step(label, (done - instant) / max(1, total - instant))
            self._show_all()

    def end(self, label: str, state: str) -> None:
        """Take the op's bar away where others are to come, otherwise fill it; move the one for all."""
        if self._bars:
            self._count += 1
            self._outlook.end(label)
            row = self._rows.pop(label)
            if self._all is None:
                self._bars.update(row, total=1, completed=1, title=state)
            else:
                self._bars.remove_task(row)
            self._show_all()

    def _show_all(self) -> None:
        if self._bars and self._all is not None:
            left = self._outlook.seconds_left()
            title = "" if left is None else f"{time_text(left)} left"
            count = f"{self._count}/{self._ops}"
            self._bars.update(self._all, completed=self._outlook.done, title=title, count=count)


def reporter(ops: int, silent: bool, total: float = 0.0) -> Reporter:
    """The one that suits standard error, for so many ops of this weight together."""
    if silent:
        return Silent()
    return Bars(ops, total or ops) if is_terminal(sys.stderr) else Lines()
