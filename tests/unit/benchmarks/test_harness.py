"""The benchmarks' arithmetic, with clocks that are made up."""

from __future__ import annotations

import importlib
import json
import sys

import pytest
from support.paths import CHECKOUT


@pytest.fixture(autouse=True)
def checkout_on_path(monkeypatch):
    monkeypatch.syspath_prepend(CHECKOUT)
    yield
    for name in [name for name in sys.modules if name == "benchmarks" or name.startswith("benchmarks.")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def harness(checkout_on_path):
    return importlib.import_module("benchmarks.harness")


class Clock:
    """Stands still but for what the contenders spend."""

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


def test_contenders_take_turns_and_the_warmup_is_not_kept(harness):
    clock = Clock()
    contenders = {"a": clock.contender("a", [9, 1, 2]), "b": clock.contender("b", [9, 4, 8])}
    samples = harness.take_turns(contenders, 2, warmup=1, clock=clock)
    assert clock.calls == ["a", "b"] * 3
    assert samples == {"a": [1, 2], "b": [4, 8]}


def test_a_turn_of_several_calls_gives_the_time_of_one(harness):
    clock = Clock()
    samples = harness.take_turns({"a": clock.contender("a", [1, 2, 3, 5, 5, 5])}, 2, warmup=0, inner=3, clock=clock)
    assert samples == {"a": [2, 5]}


def test_the_pause_before_a_turn_is_not_timed(harness):
    clock = Clock()
    samples = harness.take_turns(
        {"a": clock.contender("a", [1, 1])}, 1, warmup=1, pause=0.5, clock=clock, sleep=clock.sleep
    )
    assert clock.slept == [0.5, 0.5]
    assert samples == {"a": [1]}


def test_the_collector_is_off_while_the_clock_runs_and_on_again_after_a_failure(harness):
    import gc

    seen = []

    def fails():
        seen.append(gc.isenabled())
        raise RuntimeError("no")

    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="no"):
        harness.take_turns({"a": fails}, 1)
    assert seen == [False]
    assert gc.isenabled()


def test_a_ratio_is_the_median_of_each_rounds_own(harness):
    # The machine is ten times slower in the last round: that is no contender's doing.
    assert harness.ratio([2, 4, 60], [1, 2, 20]) == 2
    # Without rounds in common only the medians can be compared.
    assert harness.ratio([10], [1, 2, 4]) == 5


def test_a_table_compares_all_rows_with_those_that_are_named(harness):
    table = harness.Table("steps", "ms", against=("ours", "absent"))
    table.add("ours", [1, 2, 3])
    table.add("theirs", [2, 4, 6], "a note")
    table.add("left out", [])
    found = table.to_json()
    assert [row["contender"] for row in found["rows"]] == ["ours", "theirs"]
    assert found["rows"][1] == {
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
def test_a_figure_says_whether_its_target_is_met(harness, value, target, at_most, met):
    assert harness.Figure("load", value, "ms", target, at_most).met is met


def report(harness):
    made = harness.Report("a question", "a ceiling")
    made.table("steps", "ms", against=("ours",)).add("ours", [1.0, 2.0])
    made.figure("load", 1.25, "ms", 1.5)
    made.left_out.append("a rival: not here")
    made.notes.append("a note")
    return made


def test_a_report_is_json(harness):
    found = json.loads(json.dumps(report(harness).to_json()))
    assert set(found) == {"question", "ceiling", "tables", "figures", "left_out", "notes"}
    assert set(found["tables"][0]) == {"title", "unit", "against", "rows"}
    assert found["figures"] == [
        {"what": "load", "value": 1.25, "unit": "ms", "target": 1.5, "at_most": True, "met": True}
    ]


def test_a_report_is_plain_lines_in_a_pipe(harness):
    import io

    from rich.console import Console

    show = importlib.import_module("benchmarks.show")
    output = io.StringIO()
    show.report("load", report(harness), Console(file=output, soft_wrap=True))
    lines = output.getvalue().splitlines()
    assert "load: a question" in lines
    assert "Ceiling: a ceiling" in lines
    assert "  ours       1.5        1        2        1" in lines
    assert "met load: 1.25 ms (target: at most 1.5 ms)" in lines
    assert "Left out: a rival: not here" in lines
    assert "\x1b" not in output.getvalue()


def test_a_figure_that_just_misses_is_told_apart_from_its_target(checkout_on_path):
    show = importlib.import_module("benchmarks.show")
    assert show.apart(1.00002, 1.0) == "1.00002"
    assert show.apart(1.25, 1.0) == "1.25"
    assert show.apart(1.0, 1.0) == "1"


def test_every_question_has_a_module_and_a_docstring_that_asks_it(checkout_on_path):
    benchmarks = importlib.import_module("benchmarks")
    for name in benchmarks.QUESTIONS:
        module = importlib.import_module(f"benchmarks.{name}")
        assert callable(module.run)
        assert "?" in module.__doc__


def test_an_unknown_question_is_refused_with_those_there_are(checkout_on_path, capsys):
    main = importlib.import_module("benchmarks.__main__").main
    with pytest.raises(SystemExit) as refused:
        main(["adam"])
    assert refused.value.code == 2
    assert "there is no benchmark 'adam'; there are: cold_load, warm_load" in capsys.readouterr().err


def test_a_child_starts_with_no_setting_but_those_it_is_given(checkout_on_path, tmp_path, monkeypatch):
    scratch = importlib.import_module("benchmarks.scratch")
    monkeypatch.setenv("OPFORGE_PARANOID", "1")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("OPFORGE_BENCH_DEEPSPEED_PYTHON", raising=False)
    made = scratch.Scratch(str(tmp_path))
    environment = made.environment("/opt/other/bin/python", OPFORGE_JOBS="1")
    assert environment["OPFORGE_CACHE_DIR"] == str(tmp_path / "cache")
    assert environment["OPFORGE_JOBS"] == "1"
    assert environment["PATH"].startswith("/opt/other/bin:")
    assert "OPFORGE_PARANOID" not in environment
    assert "PYTHONDONTWRITEBYTECODE" not in environment
    assert "OPFORGE_BENCH_DEEPSPEED_PYTHON" in made.no_deepspeed()


@pytest.mark.parametrize(
    ("status", "printed", "text"),
    [(1, "", "load gave 1: a traceback\nit broke"), (0, "not json", "printed no JSON"), (0, "[1]", "printed no JSON")],
)
def test_a_child_that_fails_says_why(checkout_on_path, status, printed, text):
    scratch = importlib.import_module("benchmarks.scratch")
    with pytest.raises(scratch.ChildError, match=text):
        scratch.parse("load", status, printed, "a traceback\nit broke")


def test_the_last_line_of_a_child_counts(checkout_on_path):
    scratch = importlib.import_module("benchmarks.scratch")
    assert scratch.parse("load", 0, 'building ...\n{"load": 1.5}\n', "") == {"load": 1.5}
