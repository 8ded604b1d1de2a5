"""`build-ops` and the commands about what it built, as a user runs them: in processes of their own, with a compiler."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys

import pytest
from support import child_processes, gate, polling, sample_ops, text_files

pytestmark = pytest.mark.compile

MODULE = """\
from opforge import OpBuilder

class Relu(OpBuilder):
    name, sources = "relu", ["relu.cpp"]

class Bad(OpBuilder):
    name, sources = "bad", ["bad.cpp"]

class Slow(OpBuilder):
    name, sources, abi = "slow", ["slow.cpp"], "c"

class Quick(OpBuilder):
    name, sources, abi = "quick", ["quick.cpp"], "c"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a module of ops: a good one, one with an error on line 10, one that waits at a gate."""
    place = tmp_path / "work"
    place.mkdir()
    source = sample_ops.STABLE_SOURCE.replace("@NAME@", "relu")
    text_files.write(place, "ownops.py", MODULE)
    text_files.write(place, "relu.cpp", source)
    text_files.write(place, "bad.cpp", source.replace("++i) to[i]", "++i to[i]"))
    text_files.write(place, "slow.cpp", gate.SOURCE)
    text_files.write(place, "quick.cpp", sample_ops.PLAIN_SOURCE)
    sample_ops.set_value(place, 1)
    monkeypatch.chdir(place)
    return place


run = child_processes.run_command


def states(done):
    return [line.split()[:2] for line in done.stdout.splitlines()]


def test_an_op_is_built_then_cached_then_explained(folder, own_store):
    done = run("build-ops", "ownops:Relu")
    assert done.returncode == 0, done.stderr
    assert states(done) == [["built", "ownops:Relu"]]
    path = done.stdout.split()[-1]
    assert path.startswith(str(own_store)) and os.path.isfile(path)
    assert "ownops:Relu: [2/3] compile relu.cpp" in done.stderr.splitlines()

    again = run("build-ops", "ownops:Relu")
    assert again.returncode == 0 and again.stderr == ""
    assert states(again) == [["cached", "ownops:Relu"]] and again.stdout.split()[-1] == path

    hit = run("cache", "explain", "ownops:Relu")
    assert hit.returncode == 0 and hit.stdout.startswith("hit: ownops:Relu for cpu:") and path in hit.stdout

    with open(folder / "relu.cpp", "a") as file:
        file.write("// changed\n")
    miss = run("cache", "explain", "ownops:Relu")
    assert miss.returncode == 1
    assert f"    {folder}/relu.cpp has changed (" in miss.stdout

    other = json.loads(run("cache", "explain", "ownops:Relu", "--debug", "--json").stdout)
    assert other["hit"] is False
    first, *others = [one["text"] for one in other["nearest"]["components"]]
    assert first == "compile_flags: added -g -fno-omit-frame-pointer"
    assert others.pop() == "link_flags: removed -Wl,--strip-debug"
    assert others and all(text.startswith("debug_roots.") for text in others)  # a debug build keeps source paths


def test_one_bad_op_beside_a_good_one(folder):
    done = run("build-ops", "ownops:Bad", "ownops:Relu")
    assert done.returncode == 1
    assert states(done) == [["failed", "ownops:Bad"], ["built", "ownops:Relu"]]
    assert f"error: ownops:Bad: bad: compile bad.cpp failed: {folder}/bad.cpp:10:" in done.stderr
    assert ">   10 |" in done.stderr and "Traceback" not in done.stderr


def test_a_dry_run_builds_nothing_and_tells_the_plan(folder, own_store):
    done = run("build-ops", "ownops:Relu", "--dry-run", "--target", "cpu:x86-64")
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first == "ownops:Relu for cpu:x86-64: would be built"
    assert f"  source    {folder}/relu.cpp" in rest and any("-march=x86-64" in line for line in rest)
    told = json.loads(run("build-ops", "ownops:Relu", "--dry-run", "--json", "--target", "cpu:x86-64").stdout)
    (plan,) = told["ops"]
    assert f"  key       {plan['key']}" in rest and plan["sources"] == [f"{folder}/relu.cpp"]
    assert any(command[-1] == "relu.so" for command in plan["commands"])
    assert not own_store.exists()


def test_a_dry_run_knows_a_hit(folder):
    run("build-ops", "ownops:Relu")
    told = json.loads(run("build-ops", "ownops:Relu", "--dry-run", "--json").stdout)
    assert told["ops"][0]["state"] == "cached" and os.path.isfile(told["ops"][0]["path"])


def test_a_folder_that_was_built_into_serves_as_a_layer(folder, own_store, tmp_path):
    out = str(tmp_path / "out")
    built = run("build-ops", "ownops:Relu", "--out", out)
    assert built.returncode == 0, built.stderr
    assert built.stdout.split()[-1].startswith(out)
    # Others can read it, nobody but the owner can write it, and it holds nothing that is this machine's.
    assert sorted(os.listdir(f"{out}/v1")) == ["descriptions", "entries"]
    for place, folders, files in os.walk(out):
        modes = {os.stat(os.path.join(place, name)).st_mode & 0o777 for name in [*folders, *files]}
        assert modes <= {0o755, 0o644, 0o555}
    again = run("build-ops", "ownops:Relu", "--out", out)
    assert states(again) == [["cached", "ownops:Relu"]] and os.listdir(f"{out}/v1/entries") == [entry_of(built)]
    found = run("build-ops", "ownops:Relu", OPFORGE_CACHE_LAYERS=out)
    assert states(found) == [["prebuilt", "ownops:Relu"]] and found.stderr == ""


def entry_of(done):
    """The entry's folder in the path that a run printed last."""
    return done.stdout.split()[-1].split("/")[-2]


def test_several_targets_in_one_run(folder):
    done = run("build-ops", "ownops:Relu", "--cpu-level", "x86-64", "--cpu-level", "x86-64-v3", "--json")
    told = json.loads(done.stdout)
    assert [(one["target"], one["state"]) for one in told["ops"]] == [
        ("cpu:x86-64", "built"),
        ("cpu:x86-64-v3", "built"),
    ]
    assert told["ops"][0]["result"] != told["ops"][1]["result"]


def test_compile_commands_can_be_run(folder):
    done = run("compile-commands", "ownops:Relu", OPFORGE_COMPILER_LAUNCHER="nice -n 1")
    assert done.returncode == 0 and done.stdout == "1 commands in compile_commands.json\n"
    with open("compile_commands.json") as file:
        (command,) = json.load(file)
    assert command["file"] == f"{folder}/relu.cpp" and command["directory"] == str(folder)
    assert "-fno-gnu-unique" not in command["arguments"] and "nice" not in command["arguments"]
    subprocess.run([*command["arguments"], "-fsyntax-only"], cwd=folder, check=True)


def test_compile_commands_of_a_broken_builder_keep_the_others(folder):
    with open(folder / "ownops.py", "a") as file:
        file.write("\nclass Gone(OpBuilder):\n    name, sources = 'gone', ['gone.cpp']\n")
    done = run("compile-commands", "ownops:Gone", "ownops:Relu", "--output", "-")
    assert done.returncode == 1 and len(json.loads(done.stdout)) == 1
    assert "error: ownops:Gone: The op 'gone' names 'gone.cpp', which does not exist." in done.stderr


def test_ctrl_c_ends_the_compilers_and_leaves_no_trace(folder, own_store):
    gate.close_gate(folder)
    process = child_processes.start_python(
        "import sys; sys.argv = ['b', 'ownops:Slow']; from opforge.cli import build_ops; build_ops()"
    )
    try:
        polling.wait_for(lambda: child_processes.compilers_in(folder), reason="no compiler started")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130 and out == "" and err.splitlines()[-1] == "interrupted"
    polling.wait_for(lambda: not child_processes.compilers_in(folder), reason="a compiler outlived the build")
    assert os.listdir(own_store / "v1" / "staging") == []


def test_a_run_that_is_killed_half_way_goes_on_where_it_was(folder, own_store):
    gate.close_gate(folder)
    code = "import sys; sys.argv = ['b', 'ownops:Slow', 'ownops:Quick']; from opforge.cli import build_ops; build_ops()"
    process = child_processes.start_python(code)
    try:
        polling.wait_for(lambda: len(os.listdir(own_store / "v1" / "entries")) == 1 if own_store.exists() else 0)
        polling.wait_for(lambda: child_processes.compilers_in(folder), reason="the slow one is to be under way")
    finally:
        process.kill()
        process.communicate()
    polling.wait_for(lambda: not child_processes.compilers_in(folder), reason="a compiler outlived the run")
    gate.open_gate(folder)
    again = run("build-ops", "ownops:Slow", "ownops:Quick")
    assert again.returncode == 0 and states(again) == [["built", "ownops:Slow"], ["cached", "ownops:Quick"]]
    assert again.stderr.splitlines()[-1].startswith("1 built, 1 cached in ")
    assert not any("quick" in line for line in again.stderr.splitlines())
    assert os.listdir(own_store / "v1" / "staging") == [], "what the killed run left is swept"


def test_a_trace_holds_every_step_and_every_stage(folder, tmp_path):
    trace = tmp_path / "trace.json"
    levels = ("--cpu-level", "x86-64", "--cpu-level", "x86-64-v2")
    done = run("build-ops", "ownops:Quick", *levels, "--trace", str(trace), "--jobs", "2")
    assert done.returncode == 0, done.stderr
    events = [one for one in json.loads(trace.read_text())["traceEvents"] if one["ph"] == "X"]
    steps = [one["name"] for one in events if one["cat"] == "step"]
    assert sorted(steps) == ["quick: compile quick.cpp"] * 2 + ["quick: link quick"] * 2
    stages = [one["name"] for one in events if one["cat"] == "op"]
    for stage in ("plan", "wait for the lock", "wait for a free compiler", "compile and link", "publish"):
        assert stages.count(stage) == 2
    (op,) = [one for one in events if one["name"] == "ownops:Quick for cpu:x86-64"]
    inside = [one for one in events if one["cat"] == "op" and one["tid"] == op["tid"] and one["name"] == "publish"]
    assert any(op["ts"] <= one["ts"] and one["ts"] + one["dur"] <= op["ts"] + op["dur"] for one in inside)
    assert run("build-ops", "ownops:Quick", "--trace", str(tmp_path / "none" / "t")).returncode == 2


def test_what_was_prebuilt_is_found_elsewhere_without_a_compiler(folder, tmp_path):
    out, moved, home = tmp_path / "out", tmp_path / "elsewhere" / "layer", tmp_path / "home"
    assert run("build-ops", "ownops:Quick", "--cpu-level", "x86-64", "--out", str(out)).returncode == 0
    os.makedirs(moved.parent)
    os.rename(out, moved)
    home.mkdir()
    (tmp_path / "nothing").mkdir()
    bare = {"PATH": str(tmp_path / "nothing"), "HOME": str(home), "OPFORGE_CACHE_DIR": None, "XDG_CACHE_HOME": None}
    code = "import sys; sys.path.insert(0, '.'); import ownops; "
    code += "op = ownops.Quick('cpu:x86-64').load(); print(op.value(), op.origin)"
    assert child_processes.run_python(code, env=bare | {"OPFORGE_CACHE_LAYERS": str(moved)}) == f"1 {moved}\n"

    explain = ("cache", "explain", "ownops:Quick", "--cpu-level", "x86-64")
    hit = run(*explain, **bare, OPFORGE_CACHE_LAYERS=str(moved))
    assert hit.returncode == 0 and hit.stdout.startswith("hit: ownops:Quick for cpu:x86-64, ")
    sample_ops.set_value(folder, 2)
    miss = run(*explain, **bare, OPFORGE_CACHE_LAYERS=str(moved))
    assert miss.returncode == 1 and f"{folder}/value.h has changed" in miss.stdout
    assert "plan unknown" in miss.stdout and "No C++ compiler was found." in miss.stdout
    failed = run("build-ops", "ownops:Quick", "--cpu-level", "x86-64", **bare, OPFORGE_CACHE_LAYERS=str(moved))
    assert failed.returncode == 1 and "error: ownops:Quick: No C++ compiler was found." in failed.stderr
    assert "value.h has changed" in failed.stderr


def test_a_prebuilt_op_whose_source_or_declaration_is_another_says_so(folder, tmp_path):
    out, place = str(tmp_path / "out"), ("ownops:Quick", "--cpu-level", "x86-64")
    assert run("build-ops", *place, "--out", out).returncode == 0
    (entry,) = os.listdir(os.path.join(out, "v1", "entries"))
    (tmp_path / "nothing").mkdir()
    bare = {"PATH": str(tmp_path / "nothing"), "OPFORGE_CACHE_LAYERS": out, "OPFORGE_CACHE_DIR": str(tmp_path / "own")}
    where = f"looked at {out}/v1/entries/{entry}:"
    with open(os.path.join(folder, "quick.cpp"), "a") as file:
        file.write("// more\n")
    miss = run("cache", "explain", *place, **bare)
    assert f"{where} {folder}/quick.cpp has changed" in miss.stdout, miss.stdout
    required = run("build-ops", *place, **bare, OPFORGE_PREBUILT="require")
    assert "/quick.cpp has changed" in required.stderr and "forbids to build one" in required.stderr

    assert run("build-ops", *place, "--out", out).returncode == 0
    (other,) = set(os.listdir(os.path.join(out, "v1", "entries"))) - {entry}
    with open(os.path.join(folder, "ownops.py"), "a") as file:
        file.write("\nQuick.version = '2'\n")
    miss = run("cache", "explain", *place, **bare)
    told = "it was built for cpu:x86-64, with other flags, defines, sources, ABI or version than are declared now"
    assert f"looked at {out}/v1/entries/{other}: {told}" in miss.stdout, miss.stdout
    ignored = run("cache", "explain", *place, **bare, OPFORGE_PREBUILT="ignore")
    assert ignored.returncode == 1 and out not in ignored.stdout


def test_an_entry_for_another_cpu_level_says_so(folder, tmp_path):
    out = str(tmp_path / "out")
    assert run("build-ops", "ownops:Quick", "--cpu-level", "x86-64-v3", "--out", out).returncode == 0
    required = run(
        "build-ops", "ownops:Quick", "--cpu-level", "x86-64-v2", OPFORGE_CACHE_LAYERS=out, OPFORGE_PREBUILT="require"
    )
    assert required.returncode == 1 and "OPFORGE_PREBUILT=require forbids to build" in required.stderr
    assert "it is built for cpu:x86-64-v3, and cpu:x86-64-v2 is wanted" in required.stderr
    built = run("build-ops", "ownops:Quick", "--cpu-level", "x86-64-v2", OPFORGE_CACHE_LAYERS=out)
    assert states(built) == [["built", "ownops:Quick"]], "by default it is built instead"


def test_a_terminal_gets_bars_and_a_table(folder):
    code = "import sys; sys.argv = ['b', 'ownops:Relu']; from opforge.cli import build_ops; build_ops()"
    ours, theirs = pty.openpty()
    env = child_processes.environment(TERM="xterm", COLUMNS="200")
    process = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        seen += chunk
    os.close(ours)
    assert process.wait() == 0
    text = seen.decode()
    assert "━" in text and "3/3" in text and "SECONDS" in text and "relu-" in text


def test_the_report_knows_every_op(own_store):
    done = run("report", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 0, told
    assert {one["state"] for one in told["ops"]} == {"buildable"}
    assert {"CPUAdamBuilder", "CPUAdagradBuilder", "CPULionBuilder"} <= {one["name"] for one in told["ops"]}
    assert told["accelerators"]["in_use"]["name"] == "cpu"
    tools = {one["name"]: one for one in told["compilers"]}
    assert all(tools[name]["version"] and tools[name]["path"] for name in ("host", "linker", "ninja"))


def test_an_unknown_accelerator_is_told_with_all_the_rest():
    done = run("report", OPFORGE_ACCELERATOR="cpuu")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "problem: 'cpuu', asked for by OPFORGE_ACCELERATOR, is no accelerator known here." in done.stdout
    assert "CPUAdamBuilder\tcpu" in done.stdout


def test_build_ops_lists_what_can_be_named():
    done = run("build-ops", "--list")
    assert done.returncode == 0 and "CPUAdamBuilder\tcpu" in done.stdout.splitlines()


def test_build_ops_imports_no_torch(folder):
    run("build-ops", "ownops:Relu")
    code = """
import atexit, sys
atexit.register(lambda: print("torch" in sys.modules))
sys.argv = ["b", "ownops:Relu"]
from opforge.cli import build_ops
build_ops()
"""
    assert child_processes.run_python(code).splitlines()[-1] == "False"
