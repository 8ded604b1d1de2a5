"""Measuring a case: who takes part, how often, and what is left behind."""

from __future__ import annotations

import os

import pytest
from support import child_processes
from support.bench import bench_cases

TESTS = os.path.dirname(os.path.dirname(os.path.dirname(bench_cases.__file__)))
PATH = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH", "")]))


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    from opforge.bench import clocks

    monkeypatch.setattr(clocks, "waited", lambda: 0.0)  # the machine that runs the tests may be busy
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    bench_cases.events.clear()
    yield
    assert os.listdir(folder) == []


def measured(case):
    from opforge.bench.measure import measure

    return measure("Op", case, 1, "float32", "cpu", True)


def test_a_sleep_takes_as_long_as_it_says():
    result = measured(bench_cases.SLEEP[0])
    assert min(result.times("opforge")) >= 1e-3
    assert min(result.times("slower")) >= 2e-3
    assert result.inner["slower"] == 1
    assert result.verdicts()[0].goal == 1.5
    lengths = {len(times) for times in [*result.samples.values(), *result.processor.values()]}
    assert len(lengths) == 1
    assert lengths.pop() >= 5


def test_a_contender_that_is_missing_or_fails_is_left_out_with_its_reason():
    result = measured(bench_cases.SLEEP[0])
    assert result.missing == {
        "absent": "it is not installed: install it",
        "broken": "it failed: ZeroDivisionError: no",
    }
    assert set(result.samples) == {"opforge", "slower", "reports", "ends"}


def test_a_call_that_measures_itself_is_believed():
    result = measured(bench_cases.SLEEP[0])
    assert set(result.samples["reports"]) == {0.004}
    assert set(result.processor["reports"]) == {0.001}
    assert result.inner["reports"] == 1


def test_short_calls_are_repeated_within_a_sample_and_the_harness_takes_little_of_it():
    result = measured(bench_cases.SLEEP[0])
    assert result.inner["ends"] > 1000
    # `ends` is an empty call: all of its time is the harness's own. Sleeps are what a real sample looks like.
    assert result.own_work > 0.2
    assert measured(bench_cases.case()).own_work < 0.02


def test_what_a_contender_has_started_is_ended():
    measured(bench_cases.SLEEP[0])
    assert bench_cases.events == ["ended"]


def test_a_case_that_would_not_fit_into_memory_is_not_begun():
    from opforge.ops.cases import MissingError

    with pytest.raises(MissingError, match=r"it needs about 3145728\.0 GiB of memory, and .* GiB are available"):
        measured(bench_cases.HUGE[0])


def test_memory_in_which_the_kernel_keeps_files_counts_as_available(monkeypatch):
    from opforge.accelerator.host import process_memory

    read = process_memory.read_text

    def full_of_files(root, path):
        text = "MemTotal: 2000000 kB\nMemFree: 4 kB\nMemAvailable: 1900000 kB\n"
        return text if path == "proc/meminfo" else read(root, path)

    monkeypatch.setattr(process_memory, "read_text", full_of_files)
    monkeypatch.setattr(os, "sysconf", lambda name: 4096 if "SIZE" in name else 1)
    assert measured(bench_cases.case()).samples["opforge"]


def test_a_run_goes_on_after_an_op_that_cannot_be_measured():
    from opforge.bench.runs import run
    from opforge.bench.selection import select

    selected = select(["support.bench.bench_cases:OURS_IS_MISSING", "support.bench.bench_cases:OURS_FAILS"])
    shown = []
    result = run(selected, "cpu", True, ends=lambda item: shown.append(item.case))
    assert shown == [item.case for item in result.results] == ["other"]
    assert sorted(result.missing.values()) == ["ZeroDivisionError: no", "it is not installed: install it"]
    assert result.machine["cores"] >= 1
    assert len(result.load_before) == len(result.load_after) == 3


@pytest.mark.test_all("ranks of torch: 3 s")
def test_the_ranks_of_a_contender_run_at_once_and_end():
    from opforge.bench.measure import make_place
    from opforge.ops.cases.processes import in_ranks

    with make_place(1024, "float32", "cpu", True) as place:
        call = in_ranks(place, 2, "support.bench.bench_cases:gloo", PYTHONPATH=PATH)
        sample = call()
    assert 1e-6 < sample < 1
    assert sample.processor > 0


def test_the_reason_of_a_rank_that_fails_is_the_contenders():
    from opforge.bench.measure import make_place
    from opforge.ops.cases import MissingError
    from opforge.ops.cases.processes import in_ranks

    with make_place(1024, "float32", "cpu", True) as place, pytest.raises(MissingError) as error:
        in_ranks(place, 2, "support.bench.bench_cases:fails_in_the_second_rank", PYTHONPATH=PATH)
    assert str(error.value) == "RuntimeError: rank 1 has no luck"


@pytest.mark.test_all("needs deepspeed")
def test_a_build_of_deepspeed_that_does_not_end_is_ended_and_named(monkeypatch):
    import importlib.util

    from opforge.ops.cases import MissingError, Place, rivals

    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("needs DeepSpeed")
    processes = []

    class Recorded(rivals.subprocess.Popen):
        def __init__(self, *words, **options):
            super().__init__(*words, **options)
            processes.append(self)

    monkeypatch.setattr(rivals.subprocess, "Popen", Recorded)
    monkeypatch.setattr(rivals, "PATIENCE", 0.2)
    for _ in range(2):  # the second does not wait again
        with pytest.raises(MissingError) as error:
            rivals.deepspeed(Place(1), "deepspeed.ops.op_builder", "CPUAdamBuilder")
        assert str(error.value).startswith("CPUAdamBuilder().load() did not end within 0.2 s: ")
    rivals._build_problem.cache_clear()
    assert [process.poll() is not None for process in processes] == [True]
    with pytest.raises(MissingError, match="not with --quick"):
        rivals.deepspeed(Place(1, quick=True), "deepspeed.ops.op_builder", "CPUAdamBuilder")
    monkeypatch.setenv("OPFORGE_DEEPSPEED", "1")
    with pytest.raises(MissingError, match="OPFORGE_DEEPSPEED is set"):
        rivals.deepspeed(Place(1), "deepspeed.ops.op_builder", "CPUAdamBuilder")


def test_the_time_that_threads_wait_for_a_processor_is_counted():
    """Two threads that compute on one processor: each waits for about half of the time."""
    output = child_processes.run_python(WAITING)
    waited, wall = map(float, output.split())
    assert 0.3 * wall < waited < 3 * wall


WAITING = """
import os, subprocess, sys, time
from opforge.bench.clocks import waited
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
other = subprocess.Popen([sys.executable, "-c", "import time\\nend = time.time() + 20\\nwhile time.time() < end: pass"])
try:
    time.sleep(0.3)
    before, began = waited(), time.perf_counter()
    while time.perf_counter() < began + 0.5:
        pass
    print(waited() - before, time.perf_counter() - began)
finally:
    other.kill()
    other.wait()
"""


def test_a_system_that_does_not_count_waiting_counts_none(monkeypatch, tmp_path):
    from opforge.bench import clocks

    monkeypatch.undo()
    monkeypatch.setattr(clocks, "THREADS", str(tmp_path / "task"))
    assert clocks.waited() == 0.0
