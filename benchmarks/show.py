"""Prints reports: as tables on a terminal, as plain lines in a pipe."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from opforge.bench.harness import STATISTICS, Figure, Report, Table

VERDICTS = {None: "", True: "[green]met[/green] ", False: "[red]missed[/red] "}


def number(value: float) -> str:
    """Returns a number with four significant digits, without an exponent if that is readable."""
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.3g}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def distinct(value: float, target: float | None) -> str:
    """Returns a value with as many digits as it takes to distinguish it from its target."""
    text = number(value)
    for digits in range(5, 9):
        if target is None or value == target or text != number(target):
            break
        text = f"{value:.{digits}g}"
    return text


def machine(description: dict[str, Any], console: Console) -> None:
    """Prints one paragraph on the machine."""
    load = ", ".join(f"{average:.2f}" for average in description["load_average"])
    console.print(
        f"{description['cpu']}, {description['cores']} cores, {description['memory'] / 2**30:.1f} GiB, "
        f"{description['system']}; "
        f"Python {description['python']}, torch {description['torch']}, opforge {description['opforge']}, "
        f"{description['compiler']}; "
        f"load average {load}",
        style="dim",
        highlight=False,
    )


def report(name: str, results: Report, console: Console) -> None:
    """Prints one report."""
    line = console.rule if console.is_terminal else console.print
    console.print()
    line(f"[bold]{name}[/bold]: {escape(results.measured)}")
    console.print(f"Ceiling: {escape(results.ceiling)}", highlight=False)
    for table in results.tables:
        if console.is_terminal:
            console.print(_rich(table))
        else:
            _plain(table, console)
    for figure in results.figures:
        console.print(_figure_line(figure), highlight=False)
    for text in results.notes:
        console.print(f"Note: {escape(text)}", highlight=False)
    for text in results.left_out:
        console.print(f"Left out: {escape(text)}", style="yellow", highlight=False)


def _figure_line(figure: Figure) -> str:
    target = ""
    if figure.target is not None:
        limit = f"{number(figure.target)} {figure.unit}".strip()
        target = f" (target: {'at most' if figure.at_most else 'at least'} {limit})"
    value = distinct(figure.value, figure.target)
    return f"{VERDICTS[figure.met]}{escape(figure.what)}: {value} {escape(figure.unit + target)}"


def _cells(table: Table) -> tuple[list[str], list[list[str]]]:
    """Returns the head of a table, and its rows as cells of text."""
    head = ["contender", *(f"{name} {table.unit}" for name in table.statistics), "samples"]
    head += [f"/ {name}" for name in table.against]
    body = []
    for row in table.rows:
        ratios = table.ratios(row)
        line = [row.contender, *(number(STATISTICS[name](row.samples)) for name in table.statistics)]
        line += [str(len(row.samples)), *(f"{ratios[name]:.3g}" if name in ratios else "" for name in table.against)]
        body.append([*line, row.note])
    if any(row.note for row in table.rows):
        return [*head, ""], body
    return head, [line[:-1] for line in body]


def _rich(table: Table) -> RichTable:
    head, body = _cells(table)
    rich_table = RichTable(title=escape(table.title), title_justify="left", title_style="italic")
    for title in head:
        rich_table.add_column(escape(title), justify="left" if title in ("contender", "") else "right")
    for line in body:
        rich_table.add_row(*(escape(cell) for cell in line))
    return rich_table


def _plain(table: Table, console: Console) -> None:
    head, body = _cells(table)
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    console.print(table.title, markup=False, highlight=False)
    for line in [head, *body]:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        console.print("  " + text.rstrip(), markup=False, highlight=False, soft_wrap=True)
