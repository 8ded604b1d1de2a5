"""Prints the results as plain text, the same on a terminal and in a pipe: tables, and a plot of characters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from building import LoadedOp, WarmLoad
from rich.console import Console
from steps import CEILING, FUSED, OURS, StepTimes
from training import Curves

WIDTH, HEIGHT, LINES = 64, 12, 12


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def title(console: Console, text: str) -> None:
    """Prints the heading of a section."""
    console.print()
    console.print(text, style="bold", markup=False, highlight=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.2f} s"


def ops(console: Console, loaded: Sequence[LoadedOp], cache: str) -> None:
    """Prints where each op was loaded from, and how long that took."""
    for op in loaded:
        how = "built, loaded" if op.origin == "built" else f"found in the {op.origin}, loaded"
        build = "" if op.origin == "built" else f"; its build took {_duration(op.build_seconds)}"
        _print(console, f"  {op.builder:<19} {how} in {_duration(op.seconds)}{build}")
    count = sum(op.origin == "built" for op in loaded)
    summary = f"built {count} of {len(loaded)} ops" if count else f"nothing to build: all {len(loaded)} ops were there"
    _print(console, f"  {summary}; the cache is {cache}")


def curves(console: Console, losses: Curves) -> None:
    """Prints the two losses in a dozen lines, their plot, and their largest difference."""
    steps = len(losses.ours)
    shown = sorted({1, *(round(steps * i / LINES) for i in range(1, LINES + 1))} - {0})
    _print(console, "  step   loss with CPUAdam   with torch AdamW   difference")
    for step in shown:
        ours, other = losses.ours[step - 1], losses.torch[step - 1]
        _print(console, f"  {step:>4}   {ours:>17.4f}   {other:>16.4f}   {ours - other:>+10.1e}")
    console.print()
    for line in plot(losses.ours, losses.torch):
        _print(console, "  " + line)
    difference, step = losses.largest_difference()
    _print(console, f"  Largest difference of the two curves: {difference:.2e}, at step {step} of {steps}")


def plot(ours: Sequence[float], other: Sequence[float], width: int = WIDTH, height: int = HEIGHT) -> list[str]:
    """Returns two curves as lines of text. Each point is the mean of the steps that share its column."""
    width = min(width, len(ours))
    edges = [round(len(ours) * i / width) for i in range(width + 1)]
    columns = [[sum(curve[a:b]) / (b - a) for a, b in pairwise(edges)] for curve in (ours, other)]
    high, low = max(map(max, columns)), min(map(min, columns))
    step = (high - low) / (height - 1) or 1.0
    rows = [[round((high - value) / step) for value in column] for column in columns]
    lines = []
    for row in range(height):
        marks = [" xo*"[(a == row) + 2 * (b == row)] for a, b in zip(*rows, strict=True)]
        lines.append(f"{high - row * step:5.2f} |{''.join(marks)}".rstrip())
    lines.append("      +" + "-" * width)
    lines.append(f"       1{len(ours):>{max(1, width - 1)}} steps;  * both, x CPUAdam, o torch AdamW")
    return lines


def loads(console: Console, adam: LoadedOp, warm: WarmLoad) -> None:
    """Prints the cold and the warm load of CPUAdam."""
    if adam.origin == "built":
        _print(console, f"  cold: {_duration(adam.seconds)}, in this run: built, checked, loaded")
    else:
        _print(console, f"  cold: not in this run; the build took {_duration(adam.build_seconds)} when it was made")
    text = f"  warm: {_duration(warm.load)} in a fresh process after import torch (median of {warm.processes}; "
    _print(console, text + f"one more before them: {_duration(warm.first)})")
    _print(console, f"        and import opforge before it: {_duration(warm.imported)}")


def step_times(console: Console, results: Sequence[StepTimes], threads: int) -> None:
    """Prints the times of steps, beside torch's fused ones and the memory."""
    _print(console, f"  {threads} threads, in turns over the same tensors; ceiling: as many bytes changed in place")
    for times in results:
        _print(console, f"  {times.title}, {times.elements:,} numbers")
        for name in (OURS, FUSED, CEILING):
            median, best = _duration(times.median[name]), _duration(times.best[name])
            rate = f"{times.rate(name) / 1e9:6.1f} GB/s"
            _print(console, f"    {name:<20} median {median:>8}   best {best:>8}   {rate}")
        share = times.median[CEILING] / times.median[OURS]
        _print(
            console,
            f"    CPUAdam takes {times.ratio:.2f} of torch fused's time, and reaches {share:.2f} of the ceiling",
        )
