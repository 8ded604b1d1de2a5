"""The file of a run: what is read back, and the errors for files that cannot be used."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies
from support.bench import bench_runs

from opforge.errors import BenchFileError


@pytest.fixture
def path(tmp_path):
    return bench_runs.write(tmp_path / "run.json", bench_runs.run(bench_runs.result()))


def test_a_run_is_read_back_as_it_was_written(path):
    from opforge.bench.results import read

    run = bench_runs.run(bench_runs.result())
    assert read(path) == run
    with open(path, encoding="utf-8") as file:
        record = json.load(file)
    assert record["results"][0]["figures"]["opforge"]["of_baseline"] == [2.0, 2.0, 2.0]
    assert "median" in record["method"]


def test_rates_and_goals_are_those_of_the_samples():
    result = bench_runs.result(goals={"baseline": 1.5, "copy": 3.0}, processor_goals={"copy": 1.3})
    result.processor = {"opforge": [2.0, 2.0, 2.0], "copy": [1.0, 1.0, 1.0]}
    size = 28.0 * (1 << 20)
    assert result.rate("copy") == pytest.approx((size / 2.2e9, size / 2.4e9, size / 2.0e9))
    assert result.rate("opforge") == pytest.approx((size / 1.1e9,) * 3), "twice as fast in each round"
    assert [(verdict.what, verdict.is_met) for verdict in result.verdicts()] == [
        ("of baseline", True),
        ("of copy", False),
        ("of the processor time of copy", False),
    ]
    result.unit = "us"
    assert result.rate("copy") == pytest.approx((2.2e6, 2.0e6, 2.4e6))


def busy(result, waited, processor):
    """Gives a result of seconds of wall time 1 for both contenders the other clocks' times."""
    result.waited = {name: [waited] * len(times) for name, times in result.samples.items()}
    result.processor = {name: [processor[name]] * len(times) for name, times in result.samples.items()}
    return result


def test_a_goal_is_judged_only_if_the_whole_interval_is_on_one_side_of_it():
    result = bench_runs.result(ours=[0.8, 1.0, 1.25], copy=[1.0, 1.0, 1.0], goals={"copy": 1.1})
    (verdict,) = result.verdicts()
    assert (verdict.is_met, verdict.reason) == (None, "the interval 0.8 .. 1.25 has the goal in it")


def test_a_goal_is_not_judged_if_threads_waited_for_a_processor():
    """Two threads each: processor time and waiting time together are more than the wall time."""
    result = bench_runs.result(ours=[1.0] * 9, copy=[1.0] * 9, goals={"copy": 0.5})
    busy(result, waited=0.6, processor={"opforge": 1.3, "copy": 1.3})
    (verdict,) = result.verdicts()
    assert (verdict.is_met, result.is_too_busy, result.clock) == (None, True, "wall time")
    assert verdict.reason == "the machine was too busy: threads waited 60% of the time for a processor"


def test_calls_of_one_thread_are_timed_by_processor_time_on_a_busy_machine():
    result = bench_runs.result(ours=[1.0] * 9, copy=[1.0] * 9, goals={"copy": 2.0})
    busy(result, waited=0.5, processor={"opforge": 0.5, "copy": 0.5})
    result.waited["opforge"], result.processor["opforge"] = [0.9] * 9, [0.1] * 9
    assert (result.clock, result.is_too_busy) == ("processor time", False)
    assert result.speed("opforge", "copy").value == pytest.approx(5.0)
    assert [verdict.is_met for verdict in result.verdicts()] == [True]


def test_on_an_idle_machine_the_wall_clock_counts():
    result = busy(bench_runs.result(ours=[1.0] * 9, copy=[2.0] * 9), 0.02, {"opforge": 0.98, "copy": 0.5})
    assert (result.clock, result.is_too_busy) == ("wall time", False)
    assert result.speed("opforge").value == 2.0


@given(
    strategies.lists(strategies.tuples(*[strategies.floats(1e-6, 1e3)] * 3), min_size=3, max_size=21),
)
def test_the_faster_contender_has_the_higher_rate(rounds):
    """Rates and ratios have one order, however the speed of the machine changed from round to round."""
    ours, rival, copy = map(list, zip(*rounds, strict=True))
    result = bench_runs.result(ours=ours, copy=copy)
    result.samples["rival"] = rival
    first, second = ("opforge", "rival") if result.speed("opforge") >= result.speed("rival") else ("rival", "opforge")
    assert result.rate(first).value >= result.rate(second).value * (1 - 1e-9)


def spoiled(change):
    """Returns the text of a run's file after a change of the record."""
    record = bench_runs.run(bench_runs.result()).to_json()
    change(record)
    return json.dumps(record)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is truncated, or not JSON"),
        (json.dumps(bench_runs.run(bench_runs.result()).to_json())[:-40], "it is truncated, or not JSON"),
        ("[" * 100_000, "it is truncated, or not JSON"),
        (
            '{"format": "opforge-bench", "format": "opforge-bench"}',
            "it is truncated, or not JSON: 'format' is in it twice",
        ),
        ("[]", "it is not a file of `opforge bench`"),
        ('{"machine": {}}', "it is not a file of `opforge bench`"),
        (spoiled(lambda record: record.update(version=2)), "its format has the version 2, expected 4"),
        (spoiled(lambda record: record.pop("machine")), "it is damaged: 'machine' is missing"),
        (
            spoiled(lambda record: (record["machine"].pop("torch"), record["machine"].pop("cpu"))),
            "it is damaged: 'machine.cpu' is missing",
        ),
        (spoiled(lambda record: record["results"][0].pop("samples")), "it is damaged: 'results[0].samples' is missing"),
        (spoiled(lambda record: record["results"][0]["samples"]["copy"].pop()), "it is damaged: "),
        (spoiled(lambda record: record["results"][0]["samples"]["copy"].insert(0, -1)), "it is damaged: "),
        (spoiled(lambda record: record["results"][0].update(samples=3)), "it is damaged: 'results[0].samples' is 3"),
        (spoiled(lambda record: record.update(results=7)), "it is damaged: 'results' is 7: expected a list"),
        (spoiled(lambda record: record["results"][0].update(waited={"torch": [1]})), "it is damaged: CPUAdam, step: "),
        (spoiled(lambda record: record["results"][0].update(size="64 Ki")), "it is damaged: 'results[0].size' is "),
        (spoiled(lambda record: record.update(seconds=None)), "it is damaged: 'seconds' is None: expected a number"),
    ],
)
def test_the_error_for_a_file_that_cannot_be_used_says_why_and_what_to_do(tmp_path, text, problem):
    from opforge.bench.results import read

    path = tmp_path / "run.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BenchFileError) as error:
        read(str(path))
    assert str(error.value).startswith(f"{path} cannot be used: {problem}")
    assert "Write it again with `opforge bench --json FILE`" in str(error.value)


def test_the_error_for_a_missing_file_names_it(tmp_path):
    from opforge.bench.results import read

    with pytest.raises(BenchFileError, match="cannot be used: it cannot be read: No such file or directory"):
        read(str(tmp_path / "none.json"))


def test_runs_of_two_machines_are_not_compared():
    from opforge.bench.results import check_machine

    first = bench_runs.run()
    check_machine("old.json", first.machine, bench_runs.run(system="Linux 6.9 x86_64", torch="2.14").machine)
    other = bench_runs.run(cpu="Processor B", memory=32 << 30)
    with pytest.raises(BenchFileError) as error:
        check_machine("old.json", first.machine, other.machine)
    assert str(error.value) == (
        "old.json cannot be used: it was measured on another machine (cpu: Processor A there, Processor B on this"
        " machine; memory: 16 GiB there, 32 GiB on this machine). Measure on the same machine: check out the old"
        " version, and run `opforge bench --json FILE` here."
    )
