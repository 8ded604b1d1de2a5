"""How far a build is: bars on a terminal, lines in a pipe, nothing beside JSON. All of it goes to standard error."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

import click

from .output import is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Reporter(Protocol):
    """Hears of every op and of every step that ends."""

    def __enter__(self) -> Reporter: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def begin(self, label: str) -> None:
        """An op is next."""

    def step(self, done: int, total: int, title: str) -> None:
        """A step of it has ended."""

    def end(self, state: str) -> None:
        """The op is done: built, cached, failed, ..."""


class Silent:
    """Says nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def begin(self, label: str) -> None:
        """Nothing."""

    def step(self, done: int, total: int, title: str) -> None:
        """Nothing."""

    def end(self, state: str) -> None:
        """Nothing."""


class Lines(Silent):
    """One line a step."""

    _label = ""

    def begin(self, label: str) -> None:
        """Remember whose steps come."""
        self._label = label

    def step(self, done: int, total: int, title: str) -> None:
        """Write the line."""
        click.echo(f"{self._label}: [{done}/{total}] {title}", err=True)


class Bars(Silent):
    """One bar an op, and above it one for all of them."""

    def __init__(self, ops: int) -> None:
        self._ops = ops
        self._bars: Progress | None = None
        self._all: TaskID | None = None
        self._one: TaskID | None = None

    def __enter__(self) -> Bars:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[title]}", style="dim", markup=False),
        )
        self._bars = Progress(*columns, console=Console(stderr=True), transient=True)
        self._bars.start()
        if self._ops > 1:
            self._all = self._bars.add_task("all ops", total=self._ops, title="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars:
            self._bars.stop()

    def begin(self, label: str) -> None:
        """Add the op's bar; its length is known with its first step."""
        if self._bars:
            self._one = self._bars.add_task(label, total=None, title="looking it up")

    def step(self, done: int, total: int, title: str) -> None:
        """Move the op's bar."""
        if self._bars and self._one is not None:
            self._bars.update(self._one, completed=done, total=total, title=title)

    def end(self, state: str) -> None:
        """Fill the op's bar, and move the one for all."""
        if self._bars and self._one is not None:
            total = self._bars.tasks[-1].total or 1
            self._bars.update(self._one, completed=total, total=total, title=state)
            self._bars.stop_task(self._one)
            if self._all is not None:
                self._bars.advance(self._all)


def reporter(ops: int, silent: bool) -> Reporter:
    """The one that suits standard error."""
    if silent:
        return Silent()
    return Bars(ops) if is_terminal(sys.stderr) else Lines()
