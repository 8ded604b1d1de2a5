"""Two runs compared: by the speed relative to the baseline, and only beyond the spread of both."""

from __future__ import annotations

import pytest
from support.bench import bench_runs

COPY = [2.0] * 9


def compared(old, new):
    from opforge.bench.compare import compare

    return compare(bench_runs.run(*old), bench_runs.run(*new))


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        ([1.0] * 9, "same"),
        ([1.03] * 9, "same"),  # less than 5 %
        ([1.2] * 9, "worse"),
        ([0.8] * 9, "better"),
        ([0.9, 1.0, 1.2, 1.2, 1.2, 1.2, 1.2, 1.3, 1.4], "same"),  # the intervals have 1.0 in common
    ],
)
def test_a_change_is_reported_beyond_the_spread_of_both_runs(now, verdict):
    before = [1.0] * 9
    changes = compared([bench_runs.result(ours=before, copy=COPY)], [bench_runs.result(ours=now, copy=COPY)]).changes
    assert [change.verdict for change in changes] == [verdict]


def test_a_machine_that_is_slower_altogether_changes_nothing():
    old = bench_runs.result(ours=[1.0] * 9, copy=COPY)
    new = bench_runs.result(ours=[3.0] * 9, copy=[6.0] * 9)
    assert [change.verdict for change in compared([old], [new]).changes] == ["same"]


def test_the_largest_change_comes_first():
    sizes = {1: 1.2, 2: 2.0, 3: 1.5}
    old = [bench_runs.result(ours=[1.0] * 9, copy=COPY, size=size) for size in sizes]
    new = [bench_runs.result(ours=[time] * 9, copy=COPY, size=size) for size, time in sizes.items()]
    assert [change.key.size for change in compared(old, new).with_verdict("worse")] == [2, 3, 1]


def test_what_cannot_be_compared_is_named_with_its_reason():
    old = bench_runs.result(ours=[1.0] * 9, copy=COPY)
    without = bench_runs.result(ours=[1.0] * 9, copy=COPY)
    del without.samples["copy"]
    two = bench_runs.result(ours=[1.0] * 9, copy=COPY)
    two.baseline = ["copy", "fio"]
    two.samples["fio"] = COPY
    reasons = [
        reason
        for pair in (([old], [without]), ([without], [old]), ([old], [two]), ([], [old]))
        for _, reason in compared(*pair).left_out
    ]
    assert reasons == [
        "the new run has no baseline (copy)",
        "the old run has no baseline (copy)",
        "another baseline: copy then, copy, fio now",
        "not in the old run",
    ]
