"""Interleaved timing, and the report of a benchmark. Imports only the standard library, so any Python can use it."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import repeat
from typing import Any

Timer = Callable[[Callable[[], object], int], float]
"""(call, number of calls) -> seconds of one call."""
FEWEST = 5
"""Rounds that are kept of contenders that take longer than planned."""

STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "median": statistics.median,
    "best": min,
    "worst": max,
    "mean": statistics.fmean,
}


def host_timer(clock: Callable[[], float] = time.perf_counter) -> Timer:
    """Returns a timer that reads a clock of the host before and after the calls."""

    def timer(call: Callable[[], object], inner: int) -> float:
        began = clock()
        for _ in repeat(None, inner):
            call()
        return (clock() - began) / inner

    return timer


def take_turns(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warmup: int = 1,
    inner: int | Mapping[str, int] = 1,
    pause: float = 0.0,
    mirrored: bool = False,
    seconds: float = math.inf,
    timer: Timer | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> dict[str, list[float]]:
    """Times the contenders in turns, A B C A B C ..., so that other load on the machine affects all of them alike.

    Args:
        contenders: The calls to time, by contender.
        rounds: The number of samples for each contender.
        warmup: Rounds that run first and are not kept.
        inner: Calls per turn, for a call that is too short for the clock; one number for all, or by contender.
        pause: Seconds of sleep before each turn. Threads of the previous contender may still spin while they wait for
            work; they fall asleep in the meantime.
        mirrored: Whether every second round is in the reverse order, so that none always follows the same other.
        seconds: After this time no round begins, once there are FEWEST.
        timer: Runs a call a number of times and returns the seconds of one call. By default host_timer().
        sleep: Sleeps for a number of seconds.

    Returns:
        The seconds of one call, for each round, by contender.
    """
    timer = timer or host_timer()
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    calls = {name: inner if isinstance(inner, int) else inner[name] for name in contenders}
    order, ends = list(contenders), time.perf_counter() + seconds
    collects = gc.isenabled()
    gc.disable()
    try:
        for turn in range(-warmup, rounds):
            if turn >= FEWEST and time.perf_counter() > ends:
                break
            for name in order[:: -1 if mirrored and turn % 2 else 1]:
                if pause:
                    sleep(pause)
                sample = timer(contenders[name], calls[name])
                if turn >= 0:
                    samples[name].append(sample)
    finally:
        if collects:
            gc.enable()
    return samples


def ratio(samples: Sequence[float], baseline: Sequence[float]) -> float:
    """Returns how many times the baseline the samples are.

    If both have as many rounds: the median of each round's own ratio. Otherwise: the ratio of the medians.
    """
    if len(samples) == len(baseline):
        return statistics.median(a / b for a, b in zip(samples, baseline, strict=True))
    return statistics.median(samples) / statistics.median(baseline)


def scaled(samples: Iterable[float], factor: float) -> list[float]:
    """Returns each sample times a factor, which converts seconds to a table's unit."""
    return [sample * factor for sample in samples]


@dataclass(frozen=True)
class Row:
    """One contender's samples, in its table's unit."""

    contender: str
    samples: Sequence[float]
    note: str = ""


@dataclass
class Table:
    """Contenders side by side."""

    title: str
    unit: str
    rows: list[Row] = field(default_factory=list)
    against: Sequence[str] = ()
    """The contenders that all rows are compared with, one column of ratios for each."""
    statistics: Sequence[str] = ("median", "best")

    def add(self, contender: str, samples: Sequence[float], note: str = "") -> None:
        """Adds a contender, if it has samples."""
        if samples:
            self.rows.append(Row(contender, list(samples), note))

    def samples(self, contender: str) -> Sequence[float] | None:
        """Returns the samples of a contender's row. None if there is none."""
        return next((row.samples for row in self.rows if row.contender == contender), None)

    def ratios(self, row: Row) -> dict[str, float]:
        """Returns how many times each contender of `against` the row is; contenders without a row are left out."""
        baselines = {name: self.samples(name) for name in self.against}
        return {name: ratio(row.samples, baseline) for name, baseline in baselines.items() if baseline}

    def to_json(self) -> dict[str, Any]:
        """Returns the table with its statistics and ratios."""
        rows = [
            {
                **asdict(row),
                **{name: STATISTICS[name](row.samples) for name in self.statistics},
                "ratios": self.ratios(row),
            }
            for row in self.rows
        ]
        return {"title": self.title, "unit": self.unit, "against": list(self.against), "rows": rows}


@dataclass(frozen=True)
class Figure:
    """One number that a benchmark is about, with its target if it has one."""

    what: str
    value: float
    unit: str
    target: float | None = None
    at_most: bool = True
    """Whether the value must be at most the target, or at least."""

    @property
    def met(self) -> bool | None:
        """Whether the target is met. None if there is none."""
        if self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target

    def to_json(self) -> dict[str, Any]:
        """Returns the figure, and whether its target is met."""
        return {**asdict(self), "met": self.met}


@dataclass
class Report:
    """The results of one benchmark."""

    measured: str
    """The measured quantity, in words."""
    ceiling: str
    """The limit that no implementation could exceed, and how it is measured."""
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Contenders that were not measured, each with the reason."""
    notes: list[str] = field(default_factory=list)

    def table(self, title: str, unit: str, **options: Any) -> Table:
        """Adds a table and returns it."""
        self.tables.append(Table(title, unit, **options))
        return self.tables[-1]

    def figure(self, what: str, value: float, unit: str, target: float | None = None, at_most: bool = True) -> None:
        """Adds a figure."""
        self.figures.append(Figure(what, value, unit, target, at_most))

    def to_json(self) -> dict[str, Any]:
        """Returns the whole report."""
        return {
            "measured": self.measured,
            "ceiling": self.ceiling,
            "tables": [table.to_json() for table in self.tables],
            "figures": [figure.to_json() for figure in self.figures],
            "left_out": list(self.left_out),
            "notes": list(self.notes),
        }
