"""`python -m benchmarks`: which benchmarks it runs, and its options."""

from __future__ import annotations

import importlib
import json
import sys
from types import SimpleNamespace

import pytest


def test_every_benchmark_has_a_module_and_a_docstring_that_is_a_question():
    from benchmarks import BENCHMARKS, module_name

    for name in BENCHMARKS:
        module = importlib.import_module(module_name(name))
        assert callable(module.run)
        assert "?" in module.__doc__


def test_the_error_for_an_unknown_benchmark_lists_all(capsys):
    from benchmarks.__main__ import main

    with pytest.raises(SystemExit) as error:
        main(["adam"])
    assert error.value.code == 2
    assert "there is no benchmark 'adam'; expected any of: cold_load, warm_load" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_an_error_before_anything_is_measured(capsys, tmp_path):
    from benchmarks.__main__ import main

    with pytest.raises(SystemExit) as error:
        main(["cold_load", "--json", str(tmp_path / "none" / "output.json")])
    assert error.value.code == 2
    assert "output.json cannot be used: it cannot be written: No such file or directory" in capsys.readouterr().err


def test_help_names_every_benchmark(capsys):
    from benchmarks import BENCHMARKS
    from benchmarks.__main__ import main

    with pytest.raises(SystemExit) as error:
        main(["--help"])
    assert error.value.code == 0
    text = "".join(capsys.readouterr().out.split())
    assert all(name in text for name in BENCHMARKS)
    assert "--long" in text


@pytest.fixture
def run_gc_scaling(monkeypatch, tmp_path):
    """Returns a function that runs the command line with a fake benchmark.

    The function returns whether the benchmark's run was long, and whether the JSON file says so.
    """
    import benchmarks.__main__ as main

    from opforge.bench.harness import Report

    runs = []

    def run(scratch):
        runs.append(scratch.long)
        return Report("what is measured", "a ceiling")

    monkeypatch.setitem(sys.modules, "benchmarks.store.gc_scaling", SimpleNamespace(run=run))
    monkeypatch.setattr(main.machine, "describe", lambda: {"load_average": [0.0]})
    monkeypatch.setattr(main.show, "machine", lambda description, console: None)
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path))

    def run_main(*arguments):
        assert main.main(["gc_scaling", "--json", str(tmp_path / "output.json"), *arguments]) == 0
        output = json.loads((tmp_path / "output.json").read_text())
        return runs[-1], output["long"]

    return run_main


def test_a_run_is_long_if_the_option_or_the_variable_requests_it(run_gc_scaling, monkeypatch):
    assert run_gc_scaling() == (False, False)
    assert run_gc_scaling("--long") == (True, True)
    monkeypatch.setenv("OPFORGE_BENCH_LONG", "0")
    assert run_gc_scaling() == (False, False)
    monkeypatch.setenv("OPFORGE_BENCH_LONG", "1")
    assert run_gc_scaling() == (True, True)
