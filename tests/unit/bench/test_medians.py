"""Medians, and the intervals that hold the true one."""

from __future__ import annotations

import math
import random

import pytest


def test_few_samples_have_their_whole_range_as_interval():
    from opforge.bench.medians import median

    assert median([3.0]) == (3, 3, 3)
    assert median([5, 1, 2, 4, 3]) == (3, 1, 5)
    assert median([6, 5, 1, 2, 4, 3]) == (3.5, 1, 6)


@pytest.mark.parametrize(("count", "skipped"), [(7, 0), (8, 0), (9, 1), (15, 3), (21, 5), (31, 9), (61, 22)])
def test_the_interval_is_the_innermost_that_holds_the_median_with_the_level(count, skipped):
    from opforge.bench.medians import LEVEL, median

    low, high = median(list(range(count)))[1:]
    assert (low, high) == (skipped, count - 1 - skipped)

    def outside(left_out):
        return 2 * sum(math.comb(count, number) for number in range(left_out + 1)) / 2**count

    assert outside(skipped) <= 1 - LEVEL < outside(skipped + 1)


def test_intervals_hold_the_true_median_as_often_as_they_say():
    from opforge.bench.medians import LEVEL, median

    generator = random.Random(0)
    hits = 0
    for _ in range(2000):
        value = median([generator.expovariate(1.0) for _ in range(15)])
        hits += value.low <= math.log(2) <= value.high
    assert hits / 2000 >= LEVEL - 0.01


def test_a_speed_is_compared_within_each_round():
    from opforge.bench.medians import fastest, speed_ratio

    # The machine is ten times slower in the last round: the ratio is not.
    assert speed_ratio([1, 2, 10], [2, 4, 20]) == (2, 2, 2)
    samples = {"a": [1.0, 5.0], "b": [3.0, 2.0], "c": [0.1, 0.1]}
    assert fastest(samples, ["a", "b"]) == [1.0, 2.0]
    assert fastest(samples, ["b", "absent"]) == [3.0, 2.0]
    assert fastest(samples, ["absent"]) == []
