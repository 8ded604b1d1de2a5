"""The median of samples, with an interval that needs no assumption about how they are distributed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEVEL = 0.95
METHOD = f"median and its {LEVEL * 100:.0f} % confidence interval, by the binomial distribution"


class Median(NamedTuple):
    """A median with the ends of its interval."""

    value: float
    low: float
    high: float

    def overlaps(self, other: Median) -> bool:
        """Returns whether both intervals have a value in common."""
        return self.low <= other.high and other.low <= self.high


def median(samples: Sequence[float]) -> Median:
    """Returns the median of at least one sample. Up to five samples, the interval is their whole range.

    The number of samples below the true median is binomial with probability 1/2. So the k-th smallest and the k-th
    largest sample enclose it with probability 1 - 2 * P(fewer than k of n).
    """
    ordered, count = sorted(samples), len(samples)
    outside, skipped = 2.0 ** (1 - count), 0
    # `outside` is the probability that the true median is outside if `skipped` samples are left out at each end.
    while skipped + 1 < count / 2:
        wider = outside + 2.0 ** (1 - count) * math.comb(count, skipped + 1)
        if wider > 1 - LEVEL:
            break
        outside, skipped = wider, skipped + 1
    return Median(statistics.median(ordered), ordered[skipped], ordered[count - 1 - skipped])


def spread(samples: Sequence[float]) -> Median:
    """Returns the median with the span that two runs must leave to differ: its interval, and the middle half."""
    value, ordered = median(samples), sorted(samples)
    quarter = len(ordered) // 4
    return Median(value.value, min(value.low, ordered[quarter]), max(value.high, ordered[-1 - quarter]))


def speed_ratio(samples: Sequence[float], baseline: Sequence[float]) -> Median:
    """Returns how many times as fast as the baseline the samples are, from the ratio of each round."""
    return median(round_ratios(samples, baseline))


def round_ratios(samples: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """Returns how many times as fast as the baseline each sample is."""
    return [other / own for own, other in zip(samples, baseline, strict=True)]


def fastest(samples: Mapping[str, Sequence[float]], names: Sequence[str]) -> list[float]:
    """Returns the shortest time of each round among the named contenders. Empty if none of them has samples."""
    return [min(times) for times in zip(*(samples[name] for name in names if name in samples), strict=True)]
