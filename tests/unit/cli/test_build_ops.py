"""`build-ops` above the builders: what it prints for each op, and that one that fails does not stop the others."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

from opforge.accelerator.target import Target
from opforge.builders import batch
from opforge.builders.declaration.build_plan import BuildPlan
from opforge.cli.prebuild import command
from opforge.cli.selection import Selected
from opforge.errors import BuilderError, CompileError, OpIncompatibleError
from opforge.fast_path.library import Entry


class FakeBuilder:
    """An op's builder with an entry of this origin, an error of its build, or reasons why it is incompatible."""

    devices = ("cpu",)
    target = Target("cpu", ("x86-64",))
    name = "a"

    def __init__(self, origin="built", error=None, incompatible=()):
        self.origin, self.error, self.reasons, self.arguments = origin, error, list(incompatible), None

    def look_up(self, force, any_machine):
        if self.reasons and not any_machine:
            raise OpIncompatibleError(self.name, str(self.target), self.reasons)
        if self.origin != "built" and not force:
            return Entry("0" * 32, "/store/entry", {"file": "a.so"}, self.origin)
        parts = dict.fromkeys(BuildPlan._fields, ())
        return BuildPlan(**{**parts, "op": "a", "abi": "c", "target": str(self.target), "sources": ("a.cpp",)})

    def build(self, **arguments):
        self.arguments = arguments
        arguments["on_progress"](1, 2, "compile a.cpp")
        if self.error:
            raise self.error
        return Entry("0" * 32, "/store/entry", {"file": "a.so"}, self.origin)


@pytest.fixture
def run(monkeypatch):
    """Runs build-ops over these builders: run(options..., A=FakeBuilder(), ...)."""

    class SelectedFake(Selected):
        def builder(self, debug=False, sanitize="", portable=False):
            return self.builder_class()

    def invoke(*options, named=True, **builders):
        selected = [
            SelectedFake(name, FakeBuilder.target, lambda builder=builder: builder, named)
            for name, builder in builders.items()
        ]
        monkeypatch.setattr(command, "select", lambda ops, targets: selected)
        monkeypatch.setattr(batch, "look_up", FakeBuilder.look_up)
        return CliRunner().invoke(command.command, list(options))

    return invoke


def test_each_op_is_one_line_in_a_pipe(run):
    done = run(A=FakeBuilder(), B=FakeBuilder("cache"), C=FakeBuilder("/site/layer"))
    assert done.exit_code == 0
    assert [line.partition(" in ")[0] for line in done.stdout.splitlines()] == [
        "built A for cpu:x86-64",
        "cached B for cpu:x86-64",
        "prebuilt C for cpu:x86-64",
    ]
    assert done.stdout.splitlines()[0].endswith(" s: /store/entry/a.so")
    assert done.stderr.splitlines()[0] == "A: [1/2] compile a.cpp"


def test_an_op_that_fails_does_not_stop_the_others(run):
    failing = FakeBuilder(error=CompileError("a.cpp:3: error: no"))
    done = run(A=failing, B=FakeBuilder(error=ZeroDivisionError("0")), C=FakeBuilder())
    assert done.exit_code == 1
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["failed", "failed", "built"]
    assert "error: A: a.cpp:3: error: no\nerror: B: ZeroDivisionError: 0\n" in done.stderr
    assert "error: A: it is wrong" in run(A=FakeBuilder(error=BuilderError("A", "it is wrong", "Fix it"))).stderr


def test_json_holds_every_outcome(run):
    done = run("--json", A=FakeBuilder(error=CompileError("no")), B=FakeBuilder())
    document = json.loads(done.stdout)
    assert done.exit_code == 1 and done.stderr == ""
    assert document["failed"] == 1
    assert document["ops"][0]["state"] == "failed" and document["ops"][0]["kind"] == "CompileError"
    assert document["ops"][1] | {"seconds": 0, "host": ""} == {
        "name": "B",
        "target": "cpu:x86-64",
        "state": "built",
        "seconds": 0,
        "path": "/store/entry/a.so",
        "result": "0" * 32,
        "kind": "",
        "reason": "",
        "host": "",
        "worker": "",
        "remote": "",
        "bytes": None,
        "peak_bytes": None,
        "runs": 1,
    }


def test_an_op_that_cannot_be_used_here_is_skipped_unless_it_was_named(run):
    done = run(A=FakeBuilder(incompatible=["it needs bf16"]), B=FakeBuilder(), named=False)
    assert done.exit_code == 0 and done.stdout.splitlines()[0] == "skipped A for cpu:x86-64: it needs bf16"
    done = run(A=FakeBuilder(incompatible=["it needs bf16"]))
    assert done.exit_code == 1
    assert "error: A: The op 'a' cannot be used for cpu:x86-64:\n  - it needs bf16" in done.stderr


def test_a_run_that_skips_every_op_fails(run):
    assert run(A=FakeBuilder(incompatible=["it needs bf16"]), named=False).exit_code == 1


def test_an_op_that_this_machine_cannot_run_is_built_if_a_target_is_named(run):
    done = run("--target", "cpu:x86-64-v4", A=FakeBuilder(incompatible=["this processor offers x86-64"]))
    assert done.exit_code == 0 and done.stdout.startswith("built A")


def test_an_op_that_no_compiler_here_builds_for_the_named_target_fails(run):
    error = OpIncompatibleError("a", "cpu:aarch64", ["no compiler"])
    done = run("--target", "cpu:aarch64", A=FakeBuilder(error=error))
    assert done.exit_code == 1 and done.stdout.startswith("failed A")


def test_options_reach_the_builder(run):
    builder = FakeBuilder()
    run("--jobs", "3", "--force", A=builder)
    assert builder.arguments["jobs"] == 3
    assert builder.arguments["force"] is True and builder.arguments["exact"] is True


def test_a_forced_build_is_called_built(run):
    assert run("--force", A=FakeBuilder("cache")).stdout.startswith("built A")


def test_a_build_with_asan_prints_how_to_run_it(run):
    assert "LD_PRELOAD" in run("--sanitize", "address,undefined", A=FakeBuilder()).stderr
    assert "LD_PRELOAD" not in run("--sanitize", "undefined", A=FakeBuilder()).stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--sanitize", "adress"], "'adress' is not one of address, leak, thread, undefined"),
        (["--jobs", "0"], "0 is not in the range x>=1"),
        (["--target", "cpu:z80"], "expected one of x86-64, x86-64-v2"),
        (["--cpu-level", "z80"], "'z80' is not one of"),
    ],
)
def test_wrong_usage(run, options, text):
    done = run(*options)
    assert done.exit_code == 2 and text in done.output


def test_a_run_without_any_op_says_so(run):
    done = run()
    assert done.exit_code == 0 and done.stderr == "no op is offered here: nothing to build\n"


def test_the_command_is_one(run):
    assert isinstance(command.command, click.Command) and command.command.name == "build-ops"


def test_a_target_that_fits_none_of_the_ops_is_a_warning(run):
    done = run("--target", "cuda:sm_80", "--target", "cpu:x86-64", A=FakeBuilder())
    warning = "warning: none of these ops is for cuda:sm_80: nothing is built for it\n"
    assert done.exit_code == 0 and done.stderr.count("warning:") == 1 and warning in done.stderr
    assert "warning" not in run("--cpu-level", "x86-64", A=FakeBuilder()).stderr


def test_portable_ops_are_built_for_every_level_unless_a_target_is_named(monkeypatch):
    requested = []

    def select(ops, targets):
        requested.append([str(target) for target in targets])
        return []

    monkeypatch.setattr(command, "select", select)
    CliRunner().invoke(command.command, ["--portable"])
    CliRunner().invoke(command.command, ["--portable", "--cpu-level", "x86-64-v3"])
    CliRunner().invoke(command.command, [])
    levels = ["cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:aarch64"]
    assert requested == [levels, ["cpu:x86-64-v3"], []]
