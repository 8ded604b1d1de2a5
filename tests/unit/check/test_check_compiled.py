"""`opforge check compiled` without torch: what it prints, and what it remembers."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from opforge.check import compiled
from opforge.check.compiled import Outcome
from opforge.cli import group
from opforge.foundation import remembered_values
from opforge.torch_internals import inductor

PASSED = [Outcome("one", "ok", "", 1.5), Outcome("two", "ok")]
FAILED = [Outcome("one", "failed", "a wrong result"), Outcome("two", "skipped", "the step before it did not pass")]


@pytest.fixture
def tried(monkeypatch):
    """Returns a function that runs the command with these outcomes of a torch."""

    def run(version, outcomes, *words):
        monkeypatch.setattr(compiled, "run", lambda timeout, ended: (version, outcomes))
        return CliRunner().invoke(group, ["check", "compiled", *words])

    return run


def test_one_that_passes_exits_with_0(tried):
    done = tried("2.13.0", PASSED)
    assert done.exit_code == 0 and done.output.endswith("\ntorch 2.13.0 has passed: opforge.compiled uses it.\n")


def test_one_that_fails_exits_with_1_and_says_which_step(tried):
    done = tried("2.99.0", FAILED)
    assert done.exit_code == 1 and "a wrong result" in done.output
    assert done.output.endswith("\ntorch 2.99.0 has not passed.\n")


def test_one_that_passes_where_nothing_can_be_written_is_not_used(tried):
    done = tried("2.99.0", PASSED)
    assert done.output.endswith("\ntorch 2.99.0 has passed, but nothing can be remembered on this machine.\n")


def test_as_json(tried):
    document = json.loads(tried("2.99.0", FAILED, "--json").output)
    assert (document["torch"], document["known"], document["passed"]) == ("2.99.0", False, False)
    assert document["steps"][0] == {"step": "one", "state": "failed", "reason": "a wrong result", "seconds": 0.0}


@pytest.mark.parametrize("words", [["CPUAdam"], ["--device", "cpu"], ["--list"]])
def test_nothing_else_is_checked_with_it(words):
    done = CliRunner().invoke(group, ["check", "compiled", *words])
    assert done.exit_code == 2
    assert "'compiled' is checked alone: opforge check compiled [--timeout N] [--json]" in done.output


def test_an_unknown_torch_is_refused_and_the_command_that_tries_it_is_named():
    problem = inductor.version_problem("2.99.0")
    assert problem.startswith("torch 2.99.0 is not known here: expected torch 2.10 or 2.11 or ")
    assert problem.endswith(" or 2.15, or another that has passed `opforge check compiled`")
    assert inductor.version_problem("2.15.1+cu132") == "" != inductor.version_problem("2.150.0")


def test_one_that_has_passed_is_used_until_a_file_is_another(tmp_path, monkeypatch):
    (tmp_path / "codecache.py").write_text("")
    paths = [str(tmp_path / "codecache.py")]
    stamps = remembered_values.FlatStamps(paths, remembered_values.stamps_of(paths))
    an_hour = 3600 * 10**9
    assert inductor.remember("2.99.0", (stamps, stamps.numbers[1] + an_hour))
    assert inductor.version_problem("2.99.0") == "" != inductor.version_problem("2.98.0")
    monkeypatch.setattr("opforge.foundation.opforge_version.VERSION", "9.9")
    assert inductor.version_problem("2.99.0"), "another opforge may wrap other functions"
    monkeypatch.undo()
    (tmp_path / "codecache.py").write_text("#")
    assert inductor.version_problem("2.99.0")
