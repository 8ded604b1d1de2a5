"""Two checkouts by turns: the order, the medians, and a benchmark that fails."""

from __future__ import annotations

import pytest
from benchmarks import by_turns


def reports(*samples, error=""):
    row = {"contender": "ours", "samples": [*samples]}
    report = {"tables": [{"title": "Load", "unit": "ms", "rows": [row]}], "figures": []}
    return {"warm_load": {"error": error} if error else report}


@pytest.fixture
def ran(monkeypatch):
    """The checkouts in the order of their runs; the second one takes twice as long."""
    order = []

    def run(checkout, names, rounds):
        assert (names, rounds) == (["warm_load"], 2)
        order.append(checkout)
        return reports(1.0, 2.0, 3.0) if checkout == "before" else reports(4.0)

    monkeypatch.setattr(by_turns, "run", run)
    return order


def test_each_of_them_is_the_first_in_turn(ran, capsys):
    assert by_turns.main(["before", "after", "warm_load", "--turns", "2", "--rounds", "2"]) == 0
    assert ran == ["before", "after", "after", "before"]
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "Load: ours" in line]
    assert line.split() == ["warm_load", "Load:", "ours", "2", "4", "ms", "2.00"]


def test_a_benchmark_that_fails_ends_it(monkeypatch, capsys):
    monkeypatch.setattr(by_turns, "run", lambda checkout, names, rounds: reports(error="no compiler"))
    assert by_turns.main(["before", "after", "warm_load"]) == 1
    assert "before: warm_load: no compiler" in capsys.readouterr().err
