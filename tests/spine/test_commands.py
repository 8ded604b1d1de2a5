"""The commands of README's table, each once as a user types it, on one machine with one op and one store."""

from __future__ import annotations

import json
import os

import pytest
from support import child_processes

pytestmark = pytest.mark.compile
SHOW_PLACE = """
import json, os, sys
with open(os.path.join(os.path.dirname(__file__), "rank" + os.environ["RANK"]), "w") as file:
    place = [sorted(os.sched_getaffinity(0)), os.environ["LOCAL_SIZE"], os.environ["OMP_NUM_THREADS"], sys.argv[1:]]
    json.dump(place, file)
"""


@pytest.fixture
def run(declared):
    """A function that runs a command, and returns what it printed: a document with `--json`."""

    def call(*words, code=0, **changes):
        done = child_processes.run_command(*words, **{**declared, **changes})
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout) if "--json" in words else done.stdout

    return call


@pytest.fixture
def built(run):
    """The key of the op, which has been built ahead of time."""
    (op,) = run("build-ops", "plain_ops:Plain", "--json")["ops"]
    assert op["state"] == "built"
    (entry,) = run("ls", "--json")["ops"]
    return entry["result"]


def test_build_ops_builds_ahead_of_time_and_ls_verify_inspect_rm_know_it(run, built):
    (op,) = run("build-ops", "plain_ops:Plain", "--json")["ops"]
    assert op["state"] == "cached"
    assert run("verify")
    assert "value" in run("inspect", "plain_ops:Plain")
    assert run("rm", "plain")
    assert run("ls", "--json")["ops"] == []


def test_the_cache_explains_a_miss_counts_and_pins(run, built, folder):
    assert run("cache", "explain", "plain_ops:Plain").startswith("hit")
    (folder / "value.h").write_text("#define VALUE 9\n")
    assert "value.h" in run("cache", "explain", "plain_ops:Plain", code=1)
    assert run("cache", "path").strip().endswith("/store")
    run("cache", "pin", "plain")
    run("gc", "--max-size", "1")
    assert [entry["result"] for entry in run("ls", "--json")["ops"]] == [built], (
        "a pinned entry stays whatever the limits are"
    )
    run("cache", "unpin", "plain")
    assert run("cache", "stats", "--json")


def test_compile_commands_are_written_for_clangd(run, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("compile-commands", "plain_ops:Plain")
    (command,) = json.loads((tmp_path / "compile_commands.json").read_text())
    assert command["file"] == f"{folder}/plain.cpp"


def test_a_new_project_is_created(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("new", "my-kernels")
    assert (tmp_path / "my-kernels" / "pyproject.toml").is_file()


def test_a_script_is_launched_in_processes_that_are_bound_to_cores(run, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SHOW_PLACE)
    run("launch", "--num-accelerators", "2", "--bind-cores-to-rank", str(script), "--lr", "0.1")
    (cores, *first), (others, *second) = [json.loads((tmp_path / f"rank{rank}").read_text()) for rank in range(2)]
    assert {*cores} | {*others} == os.sched_getaffinity(0)
    assert not {*cores} & {*others} or len(os.sched_getaffinity(0)) < 2
    assert first == second == ["2", str(len(cores)), ["--lr", "0.1"]]


def test_code_for_one_vendors_device_is_ported(run, tmp_path):
    (tmp_path / "train.py").write_text("import torch\nx = torch.ones(2, device='cuda')\ntorch.cuda.synchronize()\n")
    run("port", str(tmp_path / "train.py"))
    assert "torch.cuda.synchronize" not in (tmp_path / "train.py").read_text()


def test_what_keeps_a_torch_extension_from_one_binary_is_listed(run, tmp_path):
    (tmp_path / "op.cpp").write_text("#include <torch/extension.h>\nauto s = x.unsafeGetTensorImpl();\n")
    lines = run("why-not", "--no-compile", str(tmp_path), code=1).splitlines()
    assert lines[0].startswith(f"{tmp_path}/op.cpp:2: unsafeGetTensorImpl: never: ") and lines[1:] == [
        "1 line: 1 never"
    ]


def test_a_shell_completes_words(run):
    assert "opforge" in run("completion", "bash")


def test_check_compares_an_op_with_its_reference(run):
    checked = run("check", "UtilsBuilder", "--json")
    assert json.dumps(checked).count("UtilsBuilder") >= 1
