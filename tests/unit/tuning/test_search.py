"""The choice of a config, with a fake clock."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from opforge.tuning import search
from opforge.tuning.search import Candidate, choose


class FakeMachine:
    """Each config takes its seconds, times the load of the moment."""

    def __init__(self, seconds, load=(1.0,)):
        self.seconds, self.load, self.config, self.used = seconds, itertools.cycle(load), None, []

    def use(self, config):
        self.config = config.get("block", 0)
        self.used.append(self.config)

    def timer(self, candidate, inner):
        assert inner >= 1
        candidate()
        return self.seconds[self.config] * next(self.load)

    def choose(self, *blocks):
        candidates = [Candidate({"block": block}, lambda: None, self.use) for block in blocks]
        return choose(Candidate({}, lambda: None, self.use), candidates, self.timer, 1.0, pause=0.0)


def test_a_config_that_is_faster_is_taken():
    choice = FakeMachine({0: 1e-3, 1: 9e-4, 2: 8e-4, 3: 2e-3}).choose(1, 2, 3)
    assert (choice.config, choice.why, choice.is_busy) == ({"block": 2}, "", False)
    assert choice.ratio == pytest.approx((0.8, 0.8, 0.8))
    assert choice.rounds >= search.FEWEST
    assert [(other.config["block"], round(other.ratio.value, 2)) for other in choice.others] == [(1, 0.9), (3, 2.0)]
    assert choice.others[1].why == "it took 2.000 of the default's time in the first rounds, and another one 0.800"


def test_a_config_that_is_hardly_faster_is_not_taken():
    choice = FakeMachine({0: 1e-3, 1: 9.85e-4}).choose(1)
    assert (choice.config, choice.why) == ({}, "no interval is below 0.98")
    assert choice.others[0].why == "its interval ends at 0.985, which is not below 0.98"


def test_the_interval_decides_and_not_the_median():
    random = Random(1)
    load = [random.gauss(1, 0.02) for _ in range(997)]
    choice = FakeMachine({0: 1e-3, 1: 9.75e-4}, load).choose(1)
    (other,) = choice.others
    assert choice.config == {} and other.ratio.value < 0.98 < other.ratio.high


def test_on_a_busy_machine_the_default_stays():
    choice = FakeMachine({0: 1e-3, 1: 5e-4}, [1.0, 1.5, 0.7, 1.2, 1.0, 2.0, 0.8]).choose(1)
    assert choice.config == {} and choice.is_busy
    assert choice.why.startswith("the machine is busy: the default took 0.")
    assert choice.others[0].why == "the machine was busy"


def test_the_config_is_set_before_the_clock_is_read():
    machine = FakeMachine({0: 1e-3, 1: 9e-4})
    machine.choose(1)
    assert machine.used[:2] == [0, 0] and {0, 1} == {*machine.used}


def test_without_a_candidate_the_default_stays():
    choice = FakeMachine({0: 1e-3}).choose()
    assert (choice.config, choice.why, choice.rounds) == ({}, "no other config is left", 0)
