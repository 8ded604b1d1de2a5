"""Timing, tables and reports, with a fake clock."""

from __future__ import annotations

import gc
import json

import pytest


class FakeClock:
    """A clock that advances only while a contender runs or sleeps."""

    def __init__(self):
        self.now = 0.0
        self.calls = []
        self.slept = []

    def __call__(self):
        return self.now

    def contender(self, name, seconds):
        seconds = iter(seconds)

        def call():
            self.calls.append(name)
            self.now += next(seconds)

        return call

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock():
    return FakeClock()


def test_contenders_take_turns_and_the_warmup_is_not_kept(clock):
    from opforge.bench.harness import host_timer, take_turns

    contenders = {"a": clock.contender("a", [9, 1, 2]), "b": clock.contender("b", [9, 4, 8])}
    samples = take_turns(contenders, 2, warmup=1, timer=host_timer(clock))
    assert clock.calls == ["a", "b"] * 3
    assert samples == {"a": [1, 2], "b": [4, 8]}


def test_the_sample_of_several_calls_is_the_time_of_a_single_call(clock):
    from opforge.bench.harness import host_timer, take_turns

    samples = take_turns({"a": clock.contender("a", [1, 2, 3, 5, 5, 5])}, 2, warmup=0, inner=3, timer=host_timer(clock))
    assert samples == {"a": [2, 5]}


def test_the_pause_before_a_turn_is_not_timed(clock):
    from opforge.bench.harness import host_timer, take_turns

    contenders = {"a": clock.contender("a", [1, 1])}
    samples = take_turns(contenders, 1, warmup=1, pause=0.5, timer=host_timer(clock), sleep=clock.sleep)
    assert clock.slept == [0.5, 0.5]
    assert samples == {"a": [1]}


def test_the_garbage_collector_is_off_while_contenders_run_and_on_again_after_a_failure():
    from opforge.bench.harness import take_turns

    enabled = []

    def fails():
        enabled.append(gc.isenabled())
        raise RuntimeError("no")

    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="no"):
        take_turns({"a": fails}, 1)
    assert enabled == [False]
    assert gc.isenabled()


def test_a_ratio_is_the_median_of_the_rounds_own_ratios():
    from opforge.bench.harness import ratio

    # In the last round the machine is ten times slower, for both contenders alike.
    assert ratio([2, 4, 60], [1, 2, 20]) == 2
    # Without rounds in common only the medians can be compared.
    assert ratio([10], [1, 2, 4]) == 5


def test_a_table_compares_all_rows_with_those_that_are_named():
    from opforge.bench.harness import Table

    table = Table("steps", "ms", against=("ours", "absent"))
    table.add("ours", [1, 2, 3])
    table.add("theirs", [2, 4, 6], "a note")
    table.add("without samples", [])
    rows = table.to_json()["rows"]
    assert [row["contender"] for row in rows] == ["ours", "theirs"]
    assert rows[1] == {
        "contender": "theirs",
        "samples": [2, 4, 6],
        "note": "a note",
        "median": 4,
        "best": 2,
        "ratios": {"ours": 2},
    }


@pytest.mark.parametrize(
    ("value", "target", "at_most", "met"),
    [
        (1.0, 1.5, True, True),
        (1.6, 1.5, True, False),
        (21, 20, False, True),
        (19, 20, False, False),
        (1, None, True, None),
    ],
)
def test_a_figure_says_whether_its_target_is_met(value, target, at_most, met):
    from opforge.bench.harness import Figure

    assert Figure("load", value, "ms", target, at_most).met is met


def test_a_report_can_be_written_as_json():
    from opforge.bench.harness import Report

    report = Report("what is measured", "a ceiling")
    report.table("steps", "ms", against=("ours",)).add("ours", [1.0, 2.0])
    report.figure("load", 1.25, "ms", 1.5)
    content = json.loads(json.dumps(report.to_json()))
    assert set(content) == {"measured", "ceiling", "tables", "figures", "left_out", "notes"}
    assert set(content["tables"][0]) == {"title", "unit", "against", "rows"}
    assert content["figures"] == [
        {"what": "load", "value": 1.25, "unit": "ms", "target": 1.5, "at_most": True, "met": True}
    ]
