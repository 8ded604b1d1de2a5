"""Numbers and sizes as text, for the table and the page."""

from __future__ import annotations

from opforge.ops.cases.case import TIME

from .medians import Median

PREFIXES = ("", "Ki", "Mi", "Gi")


def number(value: float) -> str:
    """Returns a number with three significant digits: "0.987", "12.3", "1230"."""
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.2e}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def unit(name: str) -> str:
    """Returns a result's unit as a column's title: with the direction, where less is better."""
    return f"{name} (less is better)" if name == TIME else name


def interval(value: Median) -> str:
    """Returns the ends of a median's interval."""
    return f"{number(value.low)} .. {number(value.high)}"


def size(value: float, unit: str) -> str:
    """Returns a size in binary multiples, with its unit: "4 Mi elements", "64 MiB", "1000 tensors"."""
    scaled, power = value, 0
    while scaled >= 1024 and scaled % 1024 == 0 and power < len(PREFIXES) - 1:
        scaled, power = scaled / 1024, power + 1
    if unit == "bytes":
        return f"{scaled:g} {PREFIXES[power]}B"
    if value == 1:
        unit = unit.removesuffix("s")
    return f"{scaled:g}{' ' if power else ''}{PREFIXES[power]} {unit}"
