"""Ops that are built on one machine and loaded on another: in a wheel, and in a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from support import child_processes
from support.paths import CHECKOUT, SOURCE_TREE
from support.processes import forked_python

pytestmark = pytest.mark.compile


def test_a_project_ships_its_ops_in_its_wheel_with_four_lines(tmp_path, shared_store):
    """pip builds the wheel; where it is installed neither a compiler nor a cache nor a setting is needed."""
    project = tmp_path / "project"
    shutil.copytree(os.path.join(CHECKOUT, "examples", "prebuilt_op"), project, ignore=shutil.ignore_patterns("build"))
    text = (project / "pyproject.toml").read_text()
    _before, _table, four = text.partition("[tool.opforge]\n")
    assert len(four.strip().splitlines()) <= 3
    targets = 'targets = ["cpu:x86-64"]' if os.uname().machine == "x86_64" else ""
    lines = [targets if line.startswith("targets") else line for line in text.splitlines()]
    (project / "pyproject.toml").write_text("\n".join(lines))
    pip = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", str(tmp_path), "."]
    own = {name: value for name, value in os.environ.items() if not name.startswith("OPFORGE_")}
    own |= {"OPFORGE_CACHE_DIR": str(shared_store), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(pip, cwd=project, env=own, capture_output=True, text=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    code = """
import torch, prebuilt_op
print(prebuilt_op.squared_relu(torch.tensor([-1.0, 3.0])).tolist(), prebuilt_op.op().origin)
"""
    path = os.pathsep.join([str(tmp_path / "site"), SOURCE_TREE])
    env = {"PYTHONPATH": path, "PATH": str(tmp_path), "OPFORGE_CACHE_DIR": str(tmp_path / "none")}
    assert child_processes.run_with_torch(code, env) == f"[0.0, 9.0] {tmp_path}/site/prebuilt_op/_opforge_ops\n"


def test_a_module_that_loads_while_it_is_imported_is_warned_of(folder, declared):
    with (folder / "plain_ops.py").open("a") as file:
        file.write("op = Plain().load()\n")
    for words in (["build-ops", "plain_ops:Plain"], ["cache", "explain", "plain_ops:Plain"]):
        done = child_processes.run_command(*words, **declared)
        assert done.returncode == 0 and "Importing plain_ops loads plain" in done.stderr


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for a level of x86-64")
def test_ops_for_another_level_are_built_into_a_folder_and_used_there(declared, tmp_path):
    words = ["build-ops", "plain_ops:Plain", "--cpu-level", "x86-64", "--out", str(tmp_path / "prebuilt")]
    done = child_processes.run_command(*words, **declared)
    assert done.returncode == 0, done.stderr
    code = "from plain_ops import Plain; op = Plain().load(); print(op.value(), op.origin)"
    env = {**declared, "OPFORGE_CACHE_LAYERS": str(tmp_path / "prebuilt"), "PATH": str(tmp_path)}
    env["OPFORGE_CACHE_DIR"] = str(tmp_path / "none")
    assert child_processes.run_python(code, env=env) == f"1 {tmp_path}/prebuilt\n"
    assert not (tmp_path / "none").exists()


def test_the_example_trains_with_an_op_of_opforges(quick_builds, shared_store):
    """With fewer steps it measures less. Its processes, which load an op, are forked from one that has torch."""
    example = os.path.join(CHECKOUT, "examples", "char_transformer")
    code = f"import sys; sys.executable = {forked_python.python()!r}; sys.argv = ['', '--steps', '2', '--json']\n"
    code += f"import runpy; runpy.run_path({example!r}, run_name='__main__')"
    printed = child_processes.run_with_torch(code, {"PYTHONWARNINGS": "ignore"})
    assert printed.startswith("{"), printed
    assert len(os.listdir(shared_store / "v2" / "entries")) >= 1
