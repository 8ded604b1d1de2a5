"""What the demo prints: tables and a plot of plain characters, the same on a terminal and in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from building import Built, WarmLoad
from rich.console import Console
from steps import CEILING, FUSED, OURS, StepTimes
from training import Curves

WIDTH, HEIGHT, LINES = 64, 12, 12


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def title(console: Console, text: str) -> None:
    """The heading of a part."""
    console.print()
    console.print(text, style="bold", markup=False, highlight=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.2f} s"


def ops(console: Console, built: Sequence[Built], cache: str) -> None:
    """Where each op came from, and how long that took."""
    for one in built:
        how = "built, loaded" if one.origin == "built" else f"found in the {one.origin}, loaded"
        then = "" if one.origin == "built" else f"; its build had taken {_duration(one.build_seconds)}"
        _say(console, f"  {one.builder:<19} {how} in {_duration(one.seconds)}{then}")
    count = sum(one.origin == "built" for one in built)
    done = f"built {count} of {len(built)} ops" if count else f"nothing to build: all {len(built)} ops were there"
    _say(console, f"  {done}; the cache is {cache}")


def curves(console: Console, found: Curves) -> None:
    """The two losses in a dozen lines, their plot, and their largest difference."""
    steps = len(found.ours)
    shown = sorted({1, *(round(steps * i / LINES) for i in range(1, LINES + 1))} - {0})
    _say(console, "  step   loss with CPUAdam   with torch AdamW   difference")
    for step in shown:
        ours, other = found.ours[step - 1], found.torch[step - 1]
        _say(console, f"  {step:>4}   {ours:>17.4f}   {other:>16.4f}   {ours - other:>+10.1e}")
    console.print()
    for line in plot(found.ours, found.torch):
        _say(console, "  " + line)
    difference, step = found.largest_difference()
    _say(console, f"  Largest difference of the two curves: {difference:.2e}, at step {step} of {steps}")


def plot(ours: Sequence[float], other: Sequence[float], width: int = WIDTH, height: int = HEIGHT) -> list[str]:
    """Two curves as lines of text, each point the mean of the steps that share its column."""
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


def loads(console: Console, adam: Built, warm: WarmLoad) -> None:
    """The cold and the warm load of CPUAdam."""
    if adam.origin == "built":
        _say(console, f"  cold: {_duration(adam.seconds)}, in this run: built, checked, loaded")
    else:
        _say(console, f"  cold: not in this run; the build took {_duration(adam.build_seconds)} when it was made")
    text = f"  warm: {_duration(warm.load)} in a fresh process after import torch (median of {warm.processes}; "
    _say(console, text + f"one more before them: {_duration(warm.first)})")
    _say(console, f"        and import opforge before it: {_duration(warm.imported)}")


def step_times(console: Console, found: Sequence[StepTimes], threads: int) -> None:
    """Steps beside torch's fused ones and the memory."""
    _say(console, f"  {threads} threads, by turns over the same tensors; ceiling: as many bytes changed in place")
    for one in found:
        _say(console, f"  {one.title}, {one.elements:,} numbers")
        for name in (OURS, FUSED, CEILING):
            median, best = _duration(one.median[name]), _duration(one.best[name])
            rate = f"{one.rate(name) / 1e9:6.1f} GB/s"
            _say(console, f"    {name:<20} median {median:>8}   best {best:>8}   {rate}")
        share = one.median[CEILING] / one.median[OURS]
        _say(
            console, f"    CPUAdam takes {one.ratio:.2f} of torch fused's time, and reaches {share:.2f} of the ceiling"
        )
