"""Reports as tables on a terminal, and as plain lines in a pipe."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from .harness import STATISTICS, Report, Table


def number(value: float) -> str:
    """Four figures that count, without an exponent where that is readable."""
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.3g}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def apart(value: float, target: float | None) -> str:
    """The value with as many figures as it takes to tell it from its target."""
    text = number(value)
    for digits in range(5, 9):
        if target is None or value == target or text != number(target):
            break
        text = f"{value:.{digits}g}"
    return text


def machine(facts: dict[str, Any], console: Console) -> None:
    """One paragraph on what the figures are measured on."""
    load = ", ".join(f"{one:.2f}" for one in facts["load_average"])
    console.print(
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory'] / 2**30:.1f} GiB, {facts['system']}; "
        f"Python {facts['python']}, torch {facts['torch']}, opforge {facts['opforge']}, {facts['compiler']}; "
        f"load average {load}",
        style="dim",
        highlight=False,
    )


def report(name: str, found: Report, console: Console) -> None:
    """All of one report."""
    line = console.rule if console.is_terminal else console.print
    console.print()
    line(f"[bold]{name}[/bold]: {escape(found.question)}")
    console.print(f"Ceiling: {escape(found.ceiling)}", highlight=False)
    for table in found.tables:
        if console.is_terminal:
            console.print(_rich(table))
        else:
            _plain(table, console)
    for figure in found.figures:
        sign = "" if figure.target is None else f" (target: {'at most' if figure.at_most else 'at least'} "
        sign += "" if figure.target is None else f"{number(figure.target)} {figure.unit}".strip() + ")"
        colour = {None: "", True: "[green]met[/green] ", False: "[red]missed[/red] "}[figure.met]
        console.print(
            f"{colour}{escape(figure.what)}: {apart(figure.value, figure.target)} {escape(figure.unit + sign)}",
            highlight=False,
        )
    for text in found.notes:
        console.print(f"Note: {escape(text)}", highlight=False)
    for text in found.left_out:
        console.print(f"Left out: {escape(text)}", style="yellow", highlight=False)


def _cells(table: Table) -> tuple[list[str], list[list[str]]]:
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
    made = RichTable(title=escape(table.title), title_justify="left", title_style="italic")
    for title in head:
        made.add_column(escape(title), justify="left" if title in ("contender", "") else "right")
    for line in body:
        made.add_row(*(escape(cell) for cell in line))
    return made


def _plain(table: Table, console: Console) -> None:
    head, body = _cells(table)
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    console.print(table.title, markup=False, highlight=False)
    for line in [head, *body]:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        console.print("  " + text.rstrip(), markup=False, highlight=False, soft_wrap=True)
