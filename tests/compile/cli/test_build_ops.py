"""`build-ops` as a user runs it: in a process of its own, with a real compiler."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys

import pytest
from support import child_processes, gate, polling
from support.build_output import library, states

pytestmark = pytest.mark.compile
run = child_processes.run_command


def test_an_op_is_built_then_cached_then_explained(ops_folder, own_store):
    done = run("build-ops", "ownops:Quick")
    assert done.returncode == 0, done.stderr
    assert states(done) == [["built", "ownops:Quick"]]
    path = library(done)
    assert path.startswith(str(own_store)) and os.path.isfile(path)
    assert "ownops:Quick: [1/2] compile quick.cpp" in done.stderr.splitlines()

    again = run("build-ops", "ownops:Quick")
    assert again.returncode == 0 and again.stderr == ""
    assert states(again) == [["cached", "ownops:Quick"]] and library(again) == path

    hit = run("cache", "explain", "ownops:Quick")
    assert hit.returncode == 0 and hit.stdout.startswith("hit: ownops:Quick for cpu:") and path in hit.stdout

    with open(ops_folder / "quick.cpp", "a") as file:
        file.write("// changed\n")
    miss = run("cache", "explain", "ownops:Quick")
    assert miss.returncode == 1
    assert f"    {ops_folder}/quick.cpp has changed (" in miss.stdout

    other = json.loads(run("cache", "explain", "ownops:Quick", "--debug", "--json").stdout)
    assert other["hit"] is False
    compile_flags, *debug_roots, link_flags = [component["text"] for component in other["nearest"]["components"]]
    assert compile_flags == "compile_flags: added -g -fno-omit-frame-pointer"
    assert link_flags == "link_flags: removed -Wl,--strip-debug"
    # A debug build keeps source paths, so the paths of the roots are in its key.
    assert debug_roots and all(text.startswith("debug_roots.") for text in debug_roots)


def test_an_op_that_does_not_compile_does_not_stop_the_others(ops_folder):
    done = run("build-ops", "ownops:Bad", "ownops:Quick")
    assert done.returncode == 1
    assert states(done) == [["failed", "ownops:Bad"], ["built", "ownops:Quick"]]
    assert f"error: ownops:Bad: bad: compile bad.cpp failed: {ops_folder}/bad.cpp:10:" in done.stderr
    assert ">   10 |" in done.stderr and "Traceback" not in done.stderr


def test_a_dry_run_builds_nothing_and_prints_the_plan(ops_folder, own_store):
    done = run("build-ops", "ownops:Relu", "--dry-run", "--target", "cpu:x86-64")
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first == "ownops:Relu for cpu:x86-64: would be built"
    assert f"  source    {ops_folder}/relu.cpp" in rest and any("-march=x86-64" in line for line in rest)
    as_json = run("build-ops", "ownops:Relu", "--dry-run", "--json", "--target", "cpu:x86-64")
    (plan,) = json.loads(as_json.stdout)["ops"]
    assert f"  key       {plan['key']}" in rest and plan["sources"] == [f"{ops_folder}/relu.cpp"]
    assert any(command[-1] == "relu.so" for command in plan["commands"])
    assert not own_store.exists()


def test_a_dry_run_recognises_a_hit(ops_folder):
    run("build-ops", "ownops:Quick")
    (plan,) = json.loads(run("build-ops", "ownops:Quick", "--dry-run", "--json").stdout)["ops"]
    assert plan["state"] == "cached" and os.path.isfile(plan["path"])


def test_one_run_builds_for_several_targets(ops_folder):
    done = run("build-ops", "ownops:Quick", "--cpu-level", "x86-64", "--cpu-level", "x86-64-v3", "--json")
    first, second = json.loads(done.stdout)["ops"]
    assert (first["target"], first["state"]) == ("cpu:x86-64", "built")
    assert (second["target"], second["state"]) == ("cpu:x86-64-v3", "built")
    assert first["result"] != second["result"]


def test_ctrl_c_ends_the_compilers_and_leaves_no_staging_folder(ops_folder, own_store):
    gate.close_gate(ops_folder)
    code = "import sys; sys.argv = ['b', 'ownops:Slow']; from opforge.cli import build_ops; build_ops()"
    process = child_processes.start_python(code)
    try:
        polling.wait_for(lambda: child_processes.compilers_in(ops_folder), reason="no compiler started")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130 and out == "" and err.splitlines()[-1] == "interrupted"
    polling.wait_for(lambda: not child_processes.compilers_in(ops_folder), reason="a compiler outlived the build")
    assert os.listdir(own_store / "v2" / "staging") == []


def test_a_run_after_a_killed_one_builds_only_what_is_missing(ops_folder, own_store):
    gate.close_gate(ops_folder)
    code = "import sys; sys.argv = ['b', 'ownops:Slow', 'ownops:Quick']; from opforge.cli import build_ops; build_ops()"
    process = child_processes.start_python(code)
    try:
        polling.wait_for(lambda: len([*own_store.glob("v2/plans/*/*")]) == 1, reason="the quick op was not built")
        polling.wait_for(lambda: child_processes.compilers_in(ops_folder), reason="the slow op did not start")
    finally:
        process.kill()
        process.communicate()
    polling.wait_for(lambda: not child_processes.compilers_in(ops_folder), reason="a compiler outlived the run")
    gate.open_gate(ops_folder)
    again = run("build-ops", "ownops:Slow", "ownops:Quick")
    assert again.returncode == 0 and states(again) == [["built", "ownops:Slow"], ["cached", "ownops:Quick"]]
    assert again.stderr.splitlines()[-1].startswith("1 built, 1 cached in ")
    assert [line for line in again.stderr.splitlines() if "quick" in line] == []
    assert os.listdir(own_store / "v2" / "staging") == [], "the staging folder of the killed run is removed"


def test_a_trace_holds_every_step_and_every_stage(ops_folder, tmp_path):
    trace = tmp_path / "trace.json"
    levels = ("--cpu-level", "x86-64", "--cpu-level", "x86-64-v2")
    done = run("build-ops", "ownops:Quick", *levels, "--trace", str(trace), "--jobs", "2")
    assert done.returncode == 0, done.stderr
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    steps = [event["name"] for event in events if event["cat"] == "step"]
    assert sorted(steps) == ["quick: compile quick.cpp"] * 2 + ["quick: link quick"] * 2
    stages = [event["name"] for event in events if event["cat"] == "op"]
    for stage in ("plan", "wait for the lock", "wait for a free compiler", "compile and link", "publish"):
        assert stages.count(stage) == 2
    (op,) = [event for event in events if event["name"] == "ownops:Quick for cpu:x86-64"]
    publishing = [event for event in events if event["tid"] == op["tid"] and event["name"] == "publish"]
    op_end = op["ts"] + op["dur"]
    assert any(op["ts"] <= event["ts"] and event["ts"] + event["dur"] <= op_end for event in publishing)
    assert run("build-ops", "ownops:Quick", "--trace", str(tmp_path / "none" / "t")).returncode == 2
    without_builds = ("--dry-run",), ("--on", "tcp://127.0.0.1:1")
    for arguments in without_builds:
        run("build-ops", "ownops:Quick", "--trace", str(tmp_path / "empty"), *arguments)
        assert not (tmp_path / "empty").exists(), f"{arguments} traces nothing, and leaves no empty file"


def test_a_terminal_gets_bars_and_a_table(ops_folder):
    code = "import sys; sys.argv = ['b', 'ownops:Quick']; from opforge.cli import build_ops; build_ops()"
    ours, theirs = pty.openpty()
    env = child_processes.environment(TERM="xterm", COLUMNS="300")
    process = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=theirs, stderr=theirs)
    os.close(theirs)
    output = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        output += chunk
    os.close(ours)
    assert process.wait() == 0
    text = output.decode()
    assert "━" in text and "2/2" in text and "SECONDS" in text and "quick-" in text


def test_list_prints_the_ops_that_can_be_named():
    done = run("build-ops", "--list")
    assert done.returncode == 0 and "CPUAdamBuilder\tcpu" in done.stdout.splitlines()


def test_build_ops_imports_no_torch(ops_folder):
    run("build-ops", "ownops:Relu")
    code = """
import atexit, sys
atexit.register(lambda: print("torch" in sys.modules))
sys.argv = ["b", "ownops:Relu"]
from opforge.cli import build_ops
build_ops()
"""
    assert child_processes.run_python(code).splitlines()[-1] == "False"
