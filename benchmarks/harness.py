"""Timing by turns, and what is reported of it. Imports nothing but the standard library, for any python to use."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "median": statistics.median,
    "best": min,
    "worst": max,
    "mean": statistics.fmean,
}


def take_turns(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warmup: int = 1,
    inner: int = 1,
    pause: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], object] = time.sleep,
) -> dict[str, list[float]]:
    """Time the contenders by turns, A B C A B C ..., so that what the machine does meanwhile meets all of them alike.

    Gives the seconds of one call, for each of `rounds`; a call too short for the clock is made `inner` times a turn.
    `warmup` rounds come first and are not kept. `pause` seconds before each turn let the threads of the one before,
    which may still spin in wait of work, fall asleep.
    """
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    collects = gc.isenabled()
    gc.disable()
    try:
        for turn in range(-warmup, rounds):
            for name, call in contenders.items():
                if pause:
                    sleep(pause)
                began = clock()
                for _ in range(inner):
                    call()
                spent = clock() - began
                if turn >= 0:
                    samples[name].append(spent / inner)
    finally:
        if collects:
            gc.enable()
    return samples


def ratio(samples: Sequence[float], baseline: Sequence[float]) -> float:
    """How many times the baseline: the median over the rounds of each round's own ratio, where there are as many rounds
    of both; otherwise the ratio of the medians.
    """
    if len(samples) == len(baseline):
        return statistics.median(a / b for a, b in zip(samples, baseline, strict=True))
    return statistics.median(samples) / statistics.median(baseline)


def scaled(samples: Iterable[float], factor: float) -> list[float]:
    """Each sample times a factor: seconds to the unit of a table."""
    return [sample * factor for sample in samples]


@dataclass(frozen=True)
class Row:
    """One contender's samples, in its table's unit."""

    contender: str
    samples: Sequence[float]
    note: str = ""


@dataclass
class Table:
    """Contenders side by side. `against` names the rows that all are compared with, one column of ratios each."""

    title: str
    unit: str
    rows: list[Row] = field(default_factory=list)
    against: Sequence[str] = ()
    statistics: Sequence[str] = ("median", "best")

    def add(self, contender: str, samples: Sequence[float], note: str = "") -> None:
        """Add a contender that has samples."""
        if samples:
            self.rows.append(Row(contender, list(samples), note))

    def samples(self, contender: str) -> Sequence[float] | None:
        """The samples of a row, or None where there is no such row."""
        return next((row.samples for row in self.rows if row.contender == contender), None)

    def ratios(self, row: Row) -> dict[str, float]:
        """How many times each of `against` this row is."""
        known = {name: self.samples(name) for name in self.against}
        return {name: ratio(row.samples, baseline) for name, baseline in known.items() if baseline}

    def to_json(self) -> dict[str, Any]:
        """All of it, with the figures that the samples come to."""
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
    """One number that a question is about, beside what it has to reach."""

    what: str
    value: float
    unit: str
    target: float | None = None
    at_most: bool = True
    """Whether the target is met from below."""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        if self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target

    def to_json(self) -> dict[str, Any]:
        """The figure and whether it is met."""
        return {**asdict(self), "met": self.met}


@dataclass
class Report:
    """The answer to one question."""

    question: str
    ceiling: str
    """What could not be beaten, and how it is measured."""
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Contenders that are missing, each with its reason."""
    notes: list[str] = field(default_factory=list)

    def table(self, title: str, unit: str, **options: Any) -> Table:
        """A new table of this report."""
        self.tables.append(Table(title, unit, **options))
        return self.tables[-1]

    def figure(self, what: str, value: float, unit: str, target: float | None = None, at_most: bool = True) -> None:
        """Add a figure."""
        self.figures.append(Figure(what, value, unit, target, at_most))

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "question": self.question,
            "ceiling": self.ceiling,
            "tables": [table.to_json() for table in self.tables],
            "figures": [figure.to_json() for figure in self.figures],
            "left_out": list(self.left_out),
            "notes": list(self.notes),
        }
