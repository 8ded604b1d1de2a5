"""The output of commands: tables on a terminal, tab-separated lines in a pipe, one JSON document with --json."""

from __future__ import annotations

import json
import math
import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from rich.console import Console

ROWS_OF_A_TABLE = 500
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
STATES = {
    "green": ("built", "cached", "chosen", "fits", "in use", "prebuilt", "ready", "trusted", "yes"),
    "cyan": ("buildable", "fetchable"),
    "yellow": ("expired", "skipped", "withdrawn"),
    "red": ("failed", "rejected", "revoked", "unusable"),
    "dim": ("no", "default"),
}
"""The colours of states on a terminal, by what a cell of one of STATE_COLUMNS begins with."""
STATE_COLUMNS = ("STATE", "USABLE", "INSTALLED", "FROM", "CHECKS")
AGE_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


class OutputFile(click.Path):
    """The path of a file that is written whole, and then takes the place of an older one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the path. Raises click.BadParameter for a device or a pipe: a file in its place would harm all."""
        path = str(super().convert(value, param, ctx))
        from opforge.foundation.files import is_special

        if path != "-" and is_special(path):
            self.fail(f"{path!r} is a device or a pipe: expected a file.", param, ctx)
        return path


def emit_json(value: object) -> None:
    """Prints a JSON document."""
    click.echo(json.dumps(value, indent=2))


def emit_json_list(values: Iterable[object]) -> None:
    """Prints a JSON document that is a list, each value as soon as it is known."""
    before = "["
    for value in values:
        click.echo(f"{before}\n{textwrap.indent(json.dumps(value, indent=2), '  ')}", nl=False)
        before = ","
    click.echo("\n]" if before == "," else "[]")


def is_terminal(stream: TextIO | None = None) -> bool:
    """Returns whether a stream is a terminal; by default standard output."""
    stream = stream or sys.stdout
    return stream is not None and stream.isatty()  # None: the process was started without one


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[str] = (), optional: str = ""
) -> None:
    """Prints rows below their column names: as a table on a terminal, else as tab-separated lines.

    Each line is printed as soon as its row is known; on a terminal, so is a table of every ROWS_OF_A_TABLE rows.

    Args:
        columns: The column names.
        rows: One cell a column.
        numbers: The columns that are aligned to the right.
        optional: The last column, if it may be left out on a terminal that is too narrow for it.
    """
    if not is_terminal():
        for row in chain((columns,), rows):
            click.echo("\t".join(" ".join(str(cell).split()) for cell in row))
        return
    left = iter(rows)
    some = list(islice(left, ROWS_OF_A_TABLE))
    _show_on_terminal(columns, some, numbers, optional)
    while some := list(islice(left, ROWS_OF_A_TABLE)):
        _show_on_terminal(columns, some, numbers, optional)


def _show_on_terminal(
    columns: Sequence[str], cells: Sequence[Sequence[object]], numbers: Sequence[str], optional: str
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from . import messages

    console = console_of(sys.stdout)

    def table(names: Sequence[str]) -> Table:
        grid = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        for name in names:
            grid.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
        for row in cells:
            grid.add_row(*(Text(str(cell), _style(name, str(cell))) for name, cell in zip(names, row, strict=False)))
        return grid

    whole = table(columns)
    unbounded = console.options.update(max_width=10_000)  # otherwise the measured width never exceeds the console's
    fits = not optional or console.measure(whole, options=unbounded).maximum <= console.width
    console.print(whole if fits else table(columns[:-1]))
    if not fits:
        messages.show("note", f"{optional} does not fit and is left out: use a pipe or --json to see it")


def console_of(stream: TextIO) -> Console:
    """Returns rich's console for a stream. With NO_COLOR it writes no style either: bold and dim are escapes too."""
    from rich.console import Console

    return Console(file=stream, color_system=None if _is_plain() else "auto")


def _is_plain() -> bool:
    """Returns whether no escape may be written (https://no-color.org)."""
    return os.environ.get("NO_COLOR", "") != "" or os.environ.get("TERM") == "dumb"


def _style(column: str, cell: str) -> str:
    """Returns the style of a cell: that of its state, if its column holds states."""
    if column in STATE_COLUMNS:
        for color, states in STATES.items():
            if any(cell == state or cell.startswith((f"{state} ", f"{state}:", f"{state},")) for state in states):
                return color
    return ""


def heading(text: str) -> None:
    """Prints the title of a section after an empty line."""
    click.echo()
    click.echo(text if _is_plain() else click.style(text, bold=True))


def counted(number: int, singular: str, plural: str) -> str:
    """Returns a number with its noun: "1 entry", "2 entries"."""
    return f"{number} {singular if number == 1 else plural}"


def coloured(text: str, color: str) -> str:
    """Returns a text in a colour, on a terminal that has some."""
    from opforge.errors.build import has_colors

    return click.style(text, fg=color) if has_colors(sys.stdout) else text


def size_text(size: int) -> str:
    """Returns bytes in the largest unit in which they are at least 1: "512 B", "1.5 MiB"."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {UNITS[unit]}"


def time_text(seconds: float) -> str:
    """Returns a duration, rounded up: "8 s", "2 min 10 s", "1 h 5 min"."""
    whole = max(1, math.ceil(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def age_text(seconds: float) -> str:
    """Returns an age in its largest unit, rounded down: "40 s", "3 h", "12 d"."""
    for length, unit in AGE_UNITS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} s"
