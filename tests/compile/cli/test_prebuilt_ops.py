"""Ops that `build-ops --out` has put into a layer: where they are used, and why not."""

from __future__ import annotations

import os

import pytest
from support import child_processes, sample_ops
from support.build_output import library, states

pytestmark = pytest.mark.compile
run = child_processes.run_command


def test_a_folder_of_prebuilt_ops_is_a_layer(ops_folder, own_store, tmp_path):
    out = str(tmp_path / "out")
    built = run("build-ops", "ownops:Relu", "--out", out)
    assert built.returncode == 0, built.stderr
    assert library(built).startswith(out)
    # All users can read it, only the owner can write it, and nothing in it is of this machine alone.
    assert sorted(os.listdir(f"{out}/v2")) == ["descriptions", "entries"]
    for parent, folders, files in os.walk(out):
        modes = {os.stat(os.path.join(parent, name)).st_mode & 0o777 for name in [*folders, *files]}
        assert modes <= {0o755, 0o644, 0o555}
    again = run("build-ops", "ownops:Relu", "--out", out)
    assert states(again) == [["cached", "ownops:Relu"]]
    assert os.listdir(f"{out}/v2/entries") == [os.path.basename(os.path.dirname(library(built)))]
    with_layer = run("build-ops", "ownops:Relu", OPFORGE_CACHE_LAYERS=out)
    assert states(with_layer) == [["prebuilt", "ownops:Relu"]] and with_layer.stderr == ""


def test_a_moved_layer_serves_a_machine_without_a_compiler(ops_folder, tmp_path):
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
    sample_ops.set_value(ops_folder, 2)
    miss = run(*explain, **bare, OPFORGE_CACHE_LAYERS=str(moved))
    assert miss.returncode == 1 and f"{ops_folder}/value.h has changed" in miss.stdout
    assert "plan unknown" in miss.stdout and "No C++ compiler was found." in miss.stdout
    failed = run("build-ops", "ownops:Quick", "--cpu-level", "x86-64", **bare, OPFORGE_CACHE_LAYERS=str(moved))
    assert failed.returncode == 1 and "error: ownops:Quick: No C++ compiler was found." in failed.stderr
    assert "value.h has changed" in failed.stderr


def test_explain_names_what_differs_from_a_prebuilt_op(ops_folder, tmp_path):
    out, op = str(tmp_path / "out"), ("ownops:Quick", "--cpu-level", "x86-64")
    assert run("build-ops", *op, "--out", out).returncode == 0
    (entry,) = os.listdir(os.path.join(out, "v2", "entries"))
    (tmp_path / "nothing").mkdir()
    bare = {"PATH": str(tmp_path / "nothing"), "OPFORGE_CACHE_LAYERS": out, "OPFORGE_CACHE_DIR": str(tmp_path / "own")}
    with open(os.path.join(ops_folder, "quick.cpp"), "a") as file:
        file.write("// more\n")
    miss = run("cache", "explain", *op, **bare)
    assert f"rejected {out}/v2/entries/{entry}: {ops_folder}/quick.cpp has changed" in miss.stdout, miss.stdout
    required = run("build-ops", *op, **bare, OPFORGE_PREBUILT="require")
    assert "/quick.cpp has changed" in required.stderr and "forbids building" in required.stderr

    assert run("build-ops", *op, "--out", out).returncode == 0
    (other,) = set(os.listdir(os.path.join(out, "v2", "entries"))) - {entry}
    with open(os.path.join(ops_folder, "ownops.py"), "a") as file:
        file.write("\nQuick.version = '2'\n")
    miss = run("cache", "explain", *op, **bare)
    reason = "it was built for cpu:x86-64, with other flags, defines, sources, ABI or version than are declared now"
    assert f"rejected {out}/v2/entries/{other}: {reason}" in miss.stdout, miss.stdout
    ignored = run("cache", "explain", *op, **bare, OPFORGE_PREBUILT="ignore")
    assert ignored.returncode == 1 and out not in ignored.stdout


def test_an_entry_for_another_cpu_level_is_not_used(ops_folder, tmp_path):
    out = str(tmp_path / "out")
    assert run("build-ops", "ownops:Quick", "--cpu-level", "x86-64-v3", "--out", out).returncode == 0
    required = run(
        "build-ops", "ownops:Quick", "--cpu-level", "x86-64-v2", OPFORGE_CACHE_LAYERS=out, OPFORGE_PREBUILT="require"
    )
    assert required.returncode == 1 and "OPFORGE_PREBUILT=require forbids building" in required.stderr
    assert "it is built for cpu:x86-64-v3, not for cpu:x86-64-v2" in required.stderr
    built = run("build-ops", "ownops:Quick", "--cpu-level", "x86-64-v2", OPFORGE_CACHE_LAYERS=out)
    assert states(built) == [["built", "ownops:Quick"]], "by default it is built instead"
