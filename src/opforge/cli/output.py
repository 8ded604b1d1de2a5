"""What a command prints: tables on a terminal, tab-separated lines in a pipe, one JSON document on request."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

import click

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
SPANS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def emit_json(value: object) -> None:
    """Print a JSON document."""
    click.echo(json.dumps(value, indent=2))


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether a person is likely to be looking at the stream, by default standard output."""
    stream = stream or sys.stdout
    return stream is not None and stream.isatty()  # None: the process was started without one


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[str] = (), spare: str = ""
) -> None:
    """Print rows below their columns' names.

    `numbers` names the columns that are aligned to the right; `spare`, the last one, which is left out on a terminal
    that is too narrow for it.
    """
    if not is_terminal():
        for row in (columns, *rows):
            click.echo("\t".join(" ".join(str(cell).split()) for cell in row))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    def made(names: Sequence[str]) -> Table:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        for name in names:
            table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
        for row in kept:
            table.add_row(*(Text(str(cell)) for cell in row[: len(names)]))
        return table

    kept, console = list(rows), Console()
    table = made(columns)
    unbounded = console.options.update(max_width=10_000)  # a measure is cut to the width otherwise
    fits = not spare or console.measure(table, options=unbounded).maximum <= console.width
    console.print(table if fits else made(columns[:-1]))
    if not fits:
        console.print(f"{spare} is left out for want of width; a pipe and --json show it", style="dim")


def heading(text: str) -> None:
    """Print the title of a section after an empty line."""
    click.echo()
    click.echo(text if os.environ.get("TERM") == "dumb" else click.style(text, bold=True))


def counted(number: int, one: str, many: str) -> str:
    """A number with its noun: "1 entry", "2 entries"."""
    return f"{number} {one if number == 1 else many}"


def size_text(size: int) -> str:
    """Bytes in the largest unit that leaves at least 1: "512 B", "1.5 MiB"."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {UNITS[unit]}"


def time_text(seconds: float) -> str:
    """A duration to wait for, rounded up: "8 s", "2 min 10 s", "1 h 5 min"."""
    whole = max(1, math.ceil(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def age_text(seconds: float) -> str:
    """A span in its largest unit, rounded down: "40 s", "3 h", "12 d"."""
    for span, unit in SPANS:
        if seconds >= span:
            return f"{int(seconds // span)} {unit}"
    return f"{max(0, int(seconds))} s"
