"""Compares two runs on one machine, by our speed relative to the baseline in the same run."""

from __future__ import annotations

from typing import NamedTuple

from opforge.ops.cases.case import OURS

from .medians import Median, round_ratios, spread
from .results import Key, Result, Run

SAME, WORSE, BETTER = "same", "worse", "better"
LEAST = 0.05
"""Changes of less than this share are not reported: the pages of two processes lie differently in memory."""


class Change(NamedTuple):
    """One case at one size in both runs."""

    key: Key
    old: Result
    new: Result
    before: Median
    """Our speed relative to the baseline, with its spread."""
    now: Median

    @property
    def factor(self) -> float:
        """How many times as fast as before it is, relative to the baseline."""
        return self.now.value / self.before.value

    @property
    def verdict(self) -> str:
        """SAME unless the change is beyond the spread of both runs and LEAST."""
        if self.before.overlaps(self.now) or abs(self.factor - 1) < LEAST:
            return SAME
        return WORSE if self.factor < 1 else BETTER


class Comparison(NamedTuple):
    """The measurements of both runs, and those of only one run."""

    changes: list[Change]
    left_out: list[tuple[Key, str]]
    """With the reason."""

    def with_verdict(self, verdict: str) -> list[Change]:
        """Returns the changes of one verdict, the largest first."""
        changes = [change for change in self.changes if change.verdict == verdict]
        return sorted(changes, key=lambda change: max(change.factor, 1 / change.factor), reverse=True)


def compare(old: Run, new: Run) -> Comparison:
    """Returns how each case of `new` changed since `old`. Both are of the same machine."""
    before = old.by_key()
    changes: list[Change] = []
    left_out: list[tuple[Key, str]] = []
    for key, result in new.by_key().items():
        if key not in before:
            left_out.append((key, "not in the old run"))
            continue
        earlier = before[key]
        if not (earlier.baseline_times() and result.baseline_times()):
            run = "new" if earlier.baseline_times() else "old"
            left_out.append((key, f"the {run} run has no baseline ({', '.join(result.baseline)})"))
        elif _baselines(earlier) != _baselines(result):
            names = f"{', '.join(_baselines(earlier))} then, {', '.join(_baselines(result))} now"
            left_out.append((key, f"another baseline: {names}"))
        else:
            changes.append(Change(key, earlier, result, _speed(earlier), _speed(result)))
    return Comparison(changes, left_out)


def _speed(result: Result) -> Median:
    return spread(round_ratios(result.times(OURS), result.baseline_times()))


def _baselines(result: Result) -> list[str]:
    return [name for name in result.baseline if name in result.samples]
