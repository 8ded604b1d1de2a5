"""`build-ops` above the builders: what it says of each op, and that one that fails stops no other."""

from __future__ import annotations

import json
import logging

import click
import pytest
from click.testing import CliRunner

from opforge.accelerator.target import Target
from opforge.builders import batch
from opforge.builders.spec.build_plan import BuildPlan
from opforge.cache.records.entry import Entry
from opforge.cli import progress
from opforge.cli.prebuild import command
from opforge.cli.selection import Selected
from opforge.errors import CompileError, OpIncompatibleError


class Builder:
    """An op's builder that does as it is told."""

    devices = ("cpu",)
    target = Target("cpu", ("x86-64",))
    name, trace = "a", ()

    def __init__(self, origin="built", error=None, objections=()):
        self.origin, self.error, self.refusals, self.asked = origin, error, list(objections), None

    def look_up(self, force, any_machine):
        if self.refusals and not any_machine:
            raise OpIncompatibleError("a", str(self.target), self.refusals)
        if self.origin != "built" and not force:
            return Entry("0" * 32, "/store/entry", {"file": "a.so"}, self.origin)
        parts = dict.fromkeys(BuildPlan._fields, ())
        return BuildPlan(**{**parts, "op": "a", "abi": "c", "target": str(self.target), "sources": ("a.cpp",)})

    def build(self, **asked):
        self.asked = asked
        asked["on_progress"](1, 2, "compile a.cpp")
        if self.error:
            raise self.error
        return Entry("0" * 32, "/store/entry", {"file": "a.so"}, self.origin)


@pytest.fixture
def run(monkeypatch):
    """Runs build-ops over these builders: run(options..., A=Builder(), ...)."""

    class Made(Selected):
        def builder(self, debug=False, sanitize="", portable=False):
            return self.builder_class()

    def invoke(*options, named=True, **builders):
        selected = [Made(name, Builder.target, lambda one=one: one, named) for name, one in builders.items()]
        monkeypatch.setattr(command, "select", lambda ops, targets: selected)
        monkeypatch.setattr(batch, "look_up", Builder.look_up)
        return CliRunner().invoke(command.command, list(options))

    return invoke


def test_each_op_is_one_line_in_a_pipe(run):
    done = run(A=Builder(), B=Builder("cache"), C=Builder("/site/layer"))
    assert done.exit_code == 0
    assert [line.partition(" in ")[0] for line in done.stdout.splitlines()] == [
        "built A for cpu:x86-64",
        "cached B for cpu:x86-64",
        "prebuilt C for cpu:x86-64",
    ]
    assert done.stdout.splitlines()[0].endswith(" s: /store/entry/a.so")
    assert done.stderr.splitlines()[0] == "A: [1/2] compile a.cpp"


def test_one_that_fails_stops_no_other(run):
    done = run(
        A=Builder(error=CompileError("a.cpp:3: error: no")), B=Builder(error=ZeroDivisionError("0")), C=Builder()
    )
    assert done.exit_code == 1
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["failed", "failed", "built"]
    assert "error: A: a.cpp:3: error: no\nerror: B: ZeroDivisionError: 0\n" in done.stderr


def test_json_holds_every_outcome(run):
    done = run("--json", A=Builder(error=CompileError("no")), B=Builder())
    told = json.loads(done.stdout)
    assert done.exit_code == 1 and done.stderr == ""
    assert told["failed"] == 1
    assert told["ops"][0]["state"] == "failed" and told["ops"][0]["kind"] == "CompileError"
    assert told["ops"][1] | {"seconds": 0} == {
        "name": "B",
        "target": "cpu:x86-64",
        "state": "built",
        "seconds": 0,
        "path": "/store/entry/a.so",
        "result": "0" * 32,
        "kind": "",
        "reason": "",
    }


def test_an_op_that_cannot_be_used_here_is_skipped_unless_it_was_asked_for(run):
    done = run(A=Builder(objections=["it needs bf16"]), B=Builder(), named=False)
    assert done.exit_code == 0 and done.stdout.splitlines()[0] == "skipped A for cpu:x86-64: it needs bf16"
    done = run(A=Builder(objections=["it needs bf16"]))
    assert (
        done.exit_code == 1 and "error: A: The op 'a' cannot be used for cpu:x86-64:\n  - it needs bf16" in done.stderr
    )


def test_a_run_that_skips_every_op_fails(run):
    assert run(A=Builder(objections=["it needs bf16"]), named=False).exit_code == 1


def test_what_this_machine_cannot_run_is_built_where_a_target_is_named(run):
    done = run("--target", "cpu:x86-64-v4", A=Builder(objections=["this processor offers x86-64"]))
    assert done.exit_code == 0 and done.stdout.startswith("built A")


def test_an_op_that_no_compiler_here_builds_for_the_named_target_fails(run):
    done = run("--target", "cpu:aarch64", A=Builder(error=OpIncompatibleError("a", "cpu:aarch64", ["no compiler"])))
    assert done.exit_code == 1 and done.stdout.startswith("failed A")


def test_options_reach_the_builder(run):
    builder = Builder()
    run("--jobs", "3", "--force", A=builder)
    assert builder.asked["jobs"] == 3 and builder.asked["force"] is True and builder.asked["exact"] is True


def test_a_forced_build_is_called_built(run):
    assert run("--force", A=Builder("cache")).stdout.startswith("built A")


def test_asan_needs_a_word_on_how_to_run(run):
    assert "LD_PRELOAD" in run("--sanitize", "address,undefined", A=Builder()).stderr
    assert "LD_PRELOAD" not in run("--sanitize", "undefined", A=Builder()).stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--sanitize", "adress"], "'adress' is none of address, leak, thread, undefined"),
        (["--jobs", "0"], "0 is not in the range x>=1"),
        (["--target", "cpu:z80"], "expected one of x86-64, x86-64-v2"),
        (["--cpu-level", "z80"], "'z80' is not one of"),
    ],
)
def test_wrong_usage(run, options, text):
    done = run(*options)
    assert done.exit_code == 2 and text in done.output


def test_nothing_offered_is_said(run):
    done = run()
    assert done.exit_code == 0 and done.stderr == "no op is offered here: nothing to build\n"


def test_bars_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress, "is_terminal", lambda stream: True)
    with progress.reporter(2, silent=False) as bars:
        assert isinstance(bars, progress.Bars)
        for label in ("A", "B"):
            bars.begin(label)
            bars.step(label, 1, 2, "compile [a].cpp")
            bars.end(label, "built")
        logging.getLogger("opforge").debug("beside the bars")
    assert capsys.readouterr().out == ""


def test_the_time_that_is_left_follows_what_is_done(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    outlook = progress.Outlook(total=30.0)
    outlook.begin("small", 10.0)
    outlook.begin("large", 20.0)
    assert outlook.seconds_left() is None, "nothing is known yet"
    now[0] = 106.0
    outlook.step("small", 0.5)
    outlook.step("large", 0.5)
    assert outlook.done == 15.0 and outlook.seconds_left() == 6.0
    outlook.end("small")
    assert outlook.done == 20.0 and outlook.seconds_left() == 3.0
    now[0] = 109.0
    outlook.end("large")
    assert outlook.done == 30.0 and outlook.seconds_left() == 0.0


def test_an_op_may_end_while_another_thread_looks_at_what_is_done():
    outlook = progress.Outlook(total=3.0)

    class Weight(float):
        def __mul__(self, share):
            outlook.end("second")
            return float(self) * share

    outlook.begin("first", Weight(1.0))
    outlook.begin("second", 2.0)
    assert outlook.done == 0.0
    assert outlook.done == 2.0


def test_steps_that_take_no_time_say_nothing_about_the_time_that_is_left(monkeypatch):
    monkeypatch.setattr(progress, "is_terminal", lambda stream: True)
    with progress.reporter(2, silent=False, total=10.0) as bars:
        assert isinstance(bars, progress.Bars)
        bars.begin("A", 5.0)
        bars.step("A", 1, 4, "name libtorch_cpu.so")
        bars.step("A", 2, 4, "name libtorch_cuda.so")
        assert bars._outlook.seconds_left() is None
        bars.step("A", 3, 4, "compile a.cu")
        assert bars._outlook.done == 2.5


def test_beside_json_nothing_is_said(capsys):
    with progress.reporter(1, silent=True) as silent:
        silent.begin("A")
        silent.step("A", 1, 1, "x")
        silent.end("A", "built")
    assert capsys.readouterr() == ("", "")


def test_the_command_is_one(run):
    assert isinstance(command.command, click.Command) and command.command.name == "build-ops"


def test_portable_ops_are_for_every_level_unless_a_target_is_named(monkeypatch):
    asked = []
    monkeypatch.setattr(command, "select", lambda ops, targets: asked.append([str(one) for one in targets]) or [])
    CliRunner().invoke(command.command, ["--portable"])
    CliRunner().invoke(command.command, ["--portable", "--cpu-level", "x86-64-v3"])
    CliRunner().invoke(command.command, [])
    levels = ["cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:aarch64"]
    assert asked == [levels, ["cpu:x86-64-v3"], []]
