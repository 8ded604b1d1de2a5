"""Progress of downloads and uploads: bytes, and the time that the rest takes, on a terminal alone."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from opforge.cli import messages
from opforge.cli.output import console_of, is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Transfers:
    """Shows a bar for each variant. Nothing is shown with --json or -q, or if standard error is no terminal."""

    def __init__(self, as_json: bool) -> None:
        self._shows = not as_json and is_terminal(sys.stderr) and messages.verbosity() != messages.QUIET
        self._bars: Progress | None = None
        self._rows: dict[str, TaskID] = {}

    def __enter__(self) -> Transfers:
        if self._shows:
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn(binary_units=True),
                TimeRemainingColumn(),
            )
            self._bars = Progress(*columns, console=console_of(sys.stderr), transient=True)
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars:
            self._bars.stop()

    def __call__(self, label: str, done: int, total: int) -> None:
        """Shows that so many bytes of a variant were sent or received."""
        if self._bars:
            if label not in self._rows:
                for task in filter(lambda task: task.finished, self._bars.tasks):
                    self._bars.remove_task(task.id)
                self._rows[label] = self._bars.add_task(label, total=total)
            self._bars.update(self._rows[label], completed=done)
