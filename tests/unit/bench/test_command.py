"""`opforge bench` as it is typed: what it prints, its files, its exit codes, and what is refused before it measures."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner
from support import child_processes
from support.bench import bench_runs

from opforge.cli import group

OURS = "support.bench.bench_cases:SLEEP"


def bench(*words):
    return CliRunner().invoke(group, ["bench", *words])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder, empty."""
    path = tmp_path / "work"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


@pytest.fixture(autouse=True)
def idle(monkeypatch):
    """The machine that runs the tests may be busy."""
    from opforge.bench import clocks

    monkeypatch.setattr(clocks, "waited", lambda: 0.0)


@pytest.fixture
def not_measured(monkeypatch):
    """Makes a measurement a failure: what is refused must be refused before."""
    from opforge.bench import runs

    def fail(*arguments):
        raise AssertionError("it was measured")

    monkeypatch.setattr(runs, "run", fail)


@pytest.fixture
def old(tmp_path):
    """The file of a run in which ours takes a second and the copy two."""
    result = bench_runs.result(ours=[1.0] * 9, copy=[2.0] * 9)
    return bench_runs.write(tmp_path / "old.json", bench_runs.run(result))


def test_the_cases_are_listed(not_measured):
    done = bench("--list", "CPUAdam", "AsyncIO")
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert lines[0] == ["OP", "CASE", "SIZES", "DTYPES", "DEVICES", "CONTENDERS", "BASELINE"]
    assert {line[0] for line in lines[1:]} == {"CPUAdam", "AsyncIO"}
    assert ["CPUAdam", "step", "64 Ki to 16 Mi elements", "float32 bfloat16", "cpu"] in [line[:5] for line in lines]
    assert any(line[6] == "fio io_uring or fio libaio" for line in lines)


def test_a_case_of_ones_own_is_measured_and_all_samples_are_written(folder):
    done = bench(OURS, "--quick", "--json", "run.json")
    assert done.exit_code == 0, done.output
    text = done.stdout
    assert "SIZE\tCONTENDER\tGB/s\tINTERVAL\tOF BASELINE\tOURS IS" in text
    assert "absent (support.bench.bench_cases:SLEEP): it is not installed: install it" in text
    assert "broken (support.bench.bench_cases:SLEEP): it failed: ZeroDivisionError: no" in text
    assert re.search(r"1 measurement, [01] of 1 goals met", text)  # a busy machine decides
    assert "% of a sample" in text
    assert "load" in text.splitlines()[-1]
    record = json.loads((folder / "run.json").read_text())
    assert record["results"][0]["samples"]["opforge"]
    assert sorted(os.listdir()) == ["run.json"]


def test_a_machine_that_is_too_busy_is_said_with_what_to_do(tmp_path):
    result = bench_runs.result(ours=[1.0] * 9, copy=[1.0] * 9, goals={"copy": 2.0})
    result.waited = {name: [0.63] * 9 for name in result.samples}
    result.processor = {name: [1.4] * 9 for name in result.samples}
    done = bench("--from", bench_runs.write(tmp_path / "busy.json", bench_runs.run(result)))
    line = "1 Mi elements: 1 of copy, goal 2: not judged, the machine was too busy: threads waited 63% of the time"
    assert line in done.stdout
    assert "1 Mi elements: do not trust these figures: threads waited 63% of the time" in done.stdout
    assert "1 measurement, 0 of 1 goals met, 1 not judged" in done.stdout
    assert "Run it again when it is idle, or with OMP_NUM_THREADS=1" in done.stdout
    result.processor = {name: [0.37] * 9 for name in result.samples}
    done = bench("--from", bench_runs.write(tmp_path / "busy.json", bench_runs.run(result)))
    assert "1 Mi elements: the machine was busy: timed by the processor time of one thread" in done.stdout
    assert "1 Mi elements: 1 of copy, goal 2: missed" in done.stdout and "Run it again" not in done.stdout


def test_what_was_measured_before_ctrl_c_is_shown_and_written(folder):
    done = bench("support.bench.bench_cases:INTERRUPTED", "--quick", "--json", "run.json")
    assert done.exit_code == 130, done.output
    assert "Interrupted: the rest was not measured" in done.stdout
    assert re.search(r"1 measurement, [01] of 1 goals met", done.stdout)  # a busy machine decides
    record = json.loads((folder / "run.json").read_text())
    assert record["interrupted"]
    assert [result["case"] for result in record["results"]] == ["before"]
    shown = bench("support.bench.bench_cases:INTERRUPTED", "--from", "run.json")
    assert shown.exit_code == 0
    assert "Interrupted: the rest was not measured" in shown.stdout


def test_the_document_may_go_to_the_output():
    done = bench(OURS, "--quick", "--json", "-")
    assert json.loads(done.stdout)["results"][0]["case"] == "sleep"


def test_an_unknown_op_is_wrong_usage(not_measured):
    done = bench("FPQuantiser")
    assert done.exit_code == 2
    assert "'FPQuantiser' is not an op that has cases. Did you mean FPQuantizer" in done.stderr
    done = bench("FPQuantiser", "--json", "x.json")
    assert done.exit_code == 2 and done.stdout == ""
    assert "Did you mean FPQuantizer" in done.stderr


def test_an_op_with_cases_for_another_device_is_wrong_usage(not_measured, folder):
    case = "Case('x', lambda place: (), ours=abs, sizes=(1,), devices=('cuda',))"
    (folder / "gpu_cases.py").write_text(f"from opforge.ops.cases import Case\nCASE = {case}\n")
    done = bench("gpu_cases:CASE")
    assert done.exit_code == 2 and "gpu_cases:CASE: its cases are not for the device 'cpu'." in done.stderr


def test_a_device_that_cannot_be_used_is_wrong_usage(not_measured):
    import torch

    assert "'tpu' is not a device that has cases. Expected cpu or cuda." in bench("--device", "tpu").stderr
    if not torch.cuda.is_available():
        done = bench("--device", "cuda")
        assert done.exit_code == 2
        assert "'cuda' cannot be used here:" in done.stderr


@pytest.mark.test_all("needs matplotlib")
@pytest.mark.parametrize("option", ["--html", "--json"])
def test_a_file_that_cannot_be_written_is_refused_before_the_measurement(not_measured, folder, option):
    pytest.importorskip("matplotlib")
    (folder / "folder").mkdir()
    for path, problem in (
        ("missing/page", "it cannot be written: No such file or directory"),
        ("folder", "it is a folder"),
        ("/proc/page", "it cannot be written: "),
    ):
        done = bench(OURS, option, path)
        assert done.exit_code == 1
        assert f"{path} cannot be used: {problem}" in done.stderr
        assert "hint: Choose a path in a folder that exists and that you can write" in done.stderr
    assert os.listdir() == ["folder"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"format": "opforge-bench", "ver', "it is truncated, or not JSON"),
        ('{"format": "opforge-bench", "version": 99}', "its format has the version 99, expected 4"),
    ],
)
def test_an_old_run_that_cannot_be_used_is_refused_before_the_measurement(not_measured, folder, text, problem):
    (folder / "old.json").write_text(text)
    done = bench(OURS, "--compare", "old.json")
    assert done.exit_code == 1
    assert problem in done.stderr
    assert "hint: Write it again with `opforge bench --json FILE`" in done.stderr


def test_an_old_run_of_another_machine_is_refused_before_the_measurement(not_measured, old):
    done = bench(OURS, "--compare", old)
    assert done.exit_code == 1
    assert f"{old} cannot be used: it was measured on another machine (cpu: Processor A there, " in done.stderr
    assert "hint: Measure on the same machine" in done.stderr


@pytest.mark.parametrize(
    ("ours", "code", "text"),
    [(1.5, 3, "1 worse, 0 better"), (0.5, 0, "0 worse, 1 better"), (1.0, 0, "0 worse, 0 better")],
)
def test_the_exit_code_says_whether_something_became_worse(tmp_path, old, ours, code, text):
    result = bench_runs.result(ours=[ours] * 9, copy=[2.0] * 9)
    new = bench_runs.write(tmp_path / "new.json", bench_runs.run(result))
    done = bench("--from", new, "--compare", old)
    assert done.exit_code == code
    assert f"Compared with {old}: {text}" in done.stdout
    if code:
        row = next(line for line in done.stdout.splitlines() if line.startswith("worse"))
        assert row.split("\t")[1:4] == ["CPUAdam: step", "1 Mi elements", "float32"]
        assert row.split("\t")[6:] == ["-33%", "1.00e+06 -> 1.50e+06"]


def test_a_named_op_that_the_file_lacks_is_a_failure(old):
    done = bench("--from", old, "CPULion", "--compare", old)  # otherwise nothing seems to have become worse
    assert done.exit_code == 1 and f"CPULion: {old} has no result of it" in done.stdout
    assert bench("--from", old, "CPUAdam").exit_code == 0


def test_the_page_needs_matplotlib(not_measured, monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    done = bench(OURS, "--html", "page.html")
    assert done.exit_code == 1
    assert "opforge bench --html needs the package 'matplotlib', which is not installed" in done.stderr


def test_a_named_op_that_cannot_be_measured_is_a_failure():
    done = bench("support.bench.bench_cases:OURS_IS_MISSING", "--quick")
    assert done.exit_code == 1
    assert "it is not installed: install it" in done.stdout


def test_a_case_that_calls_a_loaded_op_is_measured_by_its_builder_alone(not_measured):
    done = bench("support.bench.bench_cases:OF_AN_OP")
    assert done.exit_code == 2
    assert "calls 'forward' of a loaded op, and cases alone load none. Name the builder" in done.stderr


def test_the_help_imports_neither_torch_nor_the_cases():
    code = (
        "import sys; sys.argv = ['opforge', 'bench', '--help']; from opforge.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'opforge.bench', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_stream_of_the_process_is_written_and_not_replaced(old, folder):
    os.symlink("/proc/self/fd/1", folder / "out")
    with open(folder / "printed", "w") as file:
        command = [sys.executable, "-m", "opforge", "bench", "--from", str(old), "--json", "out"]
        subprocess.run(command, env=child_processes.environment(), stdout=file, check=True, timeout=60)
    assert os.path.islink(folder / "out")
