"""The environment and the output of child processes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from support.paths import CHECKOUT

MEASURED = sorted(Path(CHECKOUT, "benchmarks").glob("*/child_*.py"))


def test_a_child_inherits_no_settings_except_those_of_the_call(tmp_path, monkeypatch):
    from benchmarks.scratch import Scratch

    monkeypatch.setenv("OPFORGE_PARANOID", "1")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environment = Scratch(str(tmp_path)).environment("/opt/other/bin/python", OPFORGE_JOBS="1")
    assert environment["OPFORGE_CACHE_DIR"] == str(tmp_path / "cache")
    assert environment["OPFORGE_JOBS"] == "1"
    assert environment["PATH"].startswith("/opt/other/bin:")
    assert "OPFORGE_PARANOID" not in environment
    assert "PYTHONDONTWRITEBYTECODE" not in environment


@pytest.mark.parametrize("child", MEASURED, ids=lambda path: path.stem)
def test_a_child_imports_opforge_only_where_it_is_measured(child):
    """What it imports at its top would be missing in the time of the load. The parts that only measure are no part."""
    imports = [one for one in ast.parse(child.read_text()).body if isinstance(one, ast.Import | ast.ImportFrom)]
    names = {one.module if isinstance(one, ast.ImportFrom) else one.names[0].name for one in imports}
    assert not {name for name in names if name.partition(".")[0] == "opforge"} - {"opforge.bench.machine"}


def test_without_deepspeed_the_problem_names_the_variable_to_set(tmp_path):
    from benchmarks.scratch import Scratch

    assert "OPFORGE_BENCH_DEEPSPEED_PYTHON" in Scratch(str(tmp_path)).deepspeed_problem()


@pytest.mark.parametrize(
    ("status", "output", "text"),
    [
        (1, "", "load exited with 1: a traceback\nit broke"),
        (0, "not json", "printed no JSON"),
        (0, "[1]", "printed no JSON"),
    ],
)
def test_the_error_of_a_failed_child_has_its_last_lines(status, output, text):
    from benchmarks.scratch import ChildError, parse_output

    with pytest.raises(ChildError, match=text):
        parse_output("load", status, output, "a traceback\nit broke")


def test_the_last_line_of_a_child_is_its_result():
    from benchmarks.scratch import parse_output

    assert parse_output("load", 0, 'building ...\n{"load": 1.5}\n', "") == {"load": 1.5}


def test_what_only_a_long_run_measures_is_named_with_the_way_to_request_it():
    from benchmarks.scratch import only_when_long

    assert only_when_long("64 processes") == "64 processes: only with --long, or OPFORGE_BENCH_LONG=1"
