"""Plots of results, as SVG that takes its colors from the page around it."""

from __future__ import annotations

import html
import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opforge.ops.cases.case import OURS, UNITS

from . import texts
from .medians import Median, median
from .results import BASELINE, Result, ordered_contenders

WIDTH, HEIGHT = 5.0, 3.4
"""Inches. The page shows a plot at up to this width, and narrower on a small screen."""
TEXT, GRID = "#010101", "#020202"
"""Placeholders, which become the page's `currentColor` and `--grid`."""
SERIES = tuple(f"#03{number:02d}03" for number in range(8))
"""Placeholders of the series' colors, which become the page's `--series0` ... `--series7`."""
AXES = {"GB/s": "bandwidth (GB/s)", "1000/s": "rate (1000 requests/s)"}
OLD = "before"


def colors(results: Iterable[Result]) -> dict[str, int]:
    """Returns the number of each contender's color: one for all plots of these results.

    Contenders of one case have different colors. With more contenders than colors, some of different cases share one.
    """
    chosen: dict[str, int] = {}
    for result in results:
        names = ordered_contenders([result])
        for name in names:
            if name not in chosen:
                uses = Counter(chosen.values())
                beside = {chosen[other] for other in names if other in chosen}
                free = [number for number in range(len(SERIES)) if number not in beside] or [*range(len(SERIES))]
                chosen[name] = min(free, key=lambda number: (uses[number], number))
    return chosen


def rates(results: Sequence[Result], old: Sequence[Result] = (), by_name: Mapping[str, int] | None = None) -> str:
    """Returns a plot of the rate over the size: a line for each contender, with its interval, and the baseline.

    `by_name` has the contenders' colors, of `colors`; by default those of these results.
    """
    by_name = by_name or colors([*results, *old])
    figure, axes = _new(results, "Rate" if results[0].unit in UNITS else "Time of a call")
    names = ordered_contenders([*results, *old])
    for name in names:
        baseline = name in results[0].baseline
        label = f"{name} (baseline)" if baseline else name
        _line(axes, results, name, label, by_name[name], "--" if baseline else "-")
        if old:
            _line(axes, old, name, f"{name}, {OLD}", by_name[name], ":")
    axes.set_ylabel(AXES.get(results[0].unit, "time of a call (us)"))
    _size_axis(axes, results)
    return _finish(figure, axes)


def speeds(results: Sequence[Result], old: Sequence[Result] = (), by_name: Mapping[str, int] | None = None) -> str:
    """Returns a plot of how many times as fast as each other contender ours is, over the size."""
    by_name = by_name or colors([*results, *old])
    figure, axes = _new(results, f"{OURS}, relative to the others")
    names = [name for name in ordered_contenders([*results, *old]) if name != OURS]
    for name in names:
        for run, style, suffix in ((results, "-", ""), (old, ":", f", {OLD}")):
            points = [(result.size, result.speed(OURS, name)) for result in run]
            present = [(size, speed) for size, speed in points if speed]
            _draw(axes, present, f"{name}{suffix}", by_name[name], style)
    axes.axhline(1.0, color=TEXT, linewidth=0.8)
    if goals := {result.size: result.goals[BASELINE] for result in results if BASELINE in result.goals}:
        sizes = sorted(goals)
        axes.plot(sizes, [goals[size] for size in sizes], "_-.", color=TEXT, markersize=14, linewidth=1, label="goal")
    axes.set_ylabel("times as fast")
    _size_axis(axes, results)
    return _finish(figure, axes)


def spread(result: Result, old: Result | None = None, by_name: Mapping[str, int] | None = None) -> str:
    """Returns a plot of all samples of one size: a row for each contender, its median marked."""
    by_name = by_name or colors([result])
    figure, axes = _new([result], f"Samples at {texts.size(result.size, result.size_unit)}")
    names = ordered_contenders([result])
    factor, unit = (1e6, "us") if max(max(times) for times in map(result.times, names)) < 1e-3 else (1e3, "ms")
    for row, name in enumerate(reversed(names)):
        for run, offset, marker in ((result, 0.0, "o"), (old, -0.3, "x")):
            if run and name in run.samples:
                times = [seconds * factor for seconds in run.times(name)]
                color = SERIES[by_name[name]]
                axes.plot(times, [row + offset] * len(times), marker, color=color, markersize=4, alpha=0.6)
                middle = median(run.times(name)).value * factor
                axes.plot([middle, middle], [row + offset - 0.15, row + offset + 0.15], color=TEXT, linewidth=2)
    axes.set_yticks(range(len(names)), list(reversed(names)))
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xscale("log")
    _log_ticks(axes.xaxis, axes.get_xlim())
    axes.set_xlabel(f"time of a call ({unit})" + (f"; x: {OLD}" if old else ""))
    axes.set_ylabel("contender")
    return _svg(figure)


def _line(axes: Any, results: Sequence[Result], name: str, label: str, number: int, style: str) -> None:
    _draw(
        axes, [(result.size, result.rate(name)) for result in results if name in result.samples], label, number, style
    )


def _draw(axes: Any, points: Sequence[tuple[float, Median]], label: str, number: int, style: str) -> None:
    if not points:
        return
    color = SERIES[number]
    # At a single size all contenders have the same place: beside each other their intervals can be read.
    shift = 2.0 ** (0.1 * number - 0.3) if len(points) == 1 else 1.0
    points = [(size * shift, value) for size, value in points]
    sizes, medians = [size for size, _ in points], [value for _, value in points]
    axes.plot(sizes, [value.value for value in medians], style, color=color, marker="o", markersize=3, label=label)
    if len(points) > 1 and style == "-":
        low, high = [value.low for value in medians], [value.high for value in medians]
        axes.fill_between(sizes, low, high, color=color, alpha=0.2, linewidth=0)
    else:
        for size, value in points:
            axes.plot([size, size], [value.low, value.high], style, color=color, linewidth=1)


def _new(results: Sequence[Result], title: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.add_subplot()
    first = results[0]
    figure.suptitle(f"{first.op}: {first.case}, {first.dtype}\n{title}", color=TEXT, fontsize=10)
    axes.set_facecolor("none")
    figure.patch.set_alpha(0)
    axes.tick_params(colors=TEXT, which="both", labelsize=9)
    axes.xaxis.label.set_color(TEXT)
    axes.yaxis.label.set_color(TEXT)
    for spine in axes.spines.values():
        spine.set_color(GRID)
    axes.grid(True, color=GRID, linewidth=0.5)
    return figure, axes


def _size_axis(axes: Any, results: Sequence[Result]) -> None:
    unit, sizes = results[0].size_unit, sorted({result.size for result in results})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [texts.size(size, "bytes" if unit == "bytes" else "").strip() for size in sizes])
    axes.set_xticks([], minor=True)
    if len(sizes) == 1:
        axes.set_xlim(sizes[0] / 2, sizes[0] * 2)
    axes.set_xlabel(f"size ({unit})")


def _finish(figure: Any, axes: Any) -> str:
    axes.set_yscale("log")
    _log_ticks(axes.yaxis, axes.get_ylim())
    legend = figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False, labelcolor=TEXT)
    legend.set_in_layout(True)
    return _svg(figure)


def _log_ticks(axis: Any, limits: tuple[float, float]) -> None:
    """Labels an axis with plain numbers: 1, 2, 5, 10, or powers of ten alone if it has many."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    decades = math.log10(limits[1] / limits[0])
    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0) if decades < 3 else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _svg(figure: Any) -> str:
    """Returns the figure as an element for a page: colors of the page, text as text, identifiers of its own."""
    import matplotlib

    buffer = io.StringIO()
    title = figure.get_suptitle().replace("\n", ". ")
    options: Any = {"svg.fonttype": "none", "svg.hashsalt": title, "font.family": "sans-serif", "font.size": 9}
    with matplotlib.rc_context(options):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = text.replace(TEXT, "currentColor").replace(GRID, "var(--grid)")
    for number, placeholder in enumerate(SERIES):
        text = text.replace(placeholder, f"var(--series{number})")
    # Elements of all plots share one page, and so one space of identifiers.
    prefix = re.sub(r"\W", "", title)
    text = re.sub(r'(id="|href="#|url\(#)', lambda match: match[0] + prefix, text)
    text = re.sub(r"<(metadata|style).*?</\1>", "", text.replace("xlink:href", "href"), flags=re.DOTALL)
    opening = rf'<svg viewBox="\1" role="img"><title>{html.escape(title)}</title>'
    return re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', opening, text, count=1)
