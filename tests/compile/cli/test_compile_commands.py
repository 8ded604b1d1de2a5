"""`opforge compile-commands`: its file can be used, and a broken builder does not keep the others out."""

from __future__ import annotations

import json
import subprocess

import pytest
from support import child_processes

pytestmark = pytest.mark.compile
run = child_processes.run_command


def test_the_commands_of_the_file_can_be_run(ops_folder):
    done = run("compile-commands", "ownops:Relu", OPFORGE_COMPILER_LAUNCHER="nice -n 1")
    assert done.returncode == 0 and done.stdout == "1 command in compile_commands.json\n"
    with open("compile_commands.json") as file:
        (command,) = json.load(file)
    assert command["file"] == f"{ops_folder}/relu.cpp" and command["directory"] == str(ops_folder)
    assert "-fno-gnu-unique" not in command["arguments"] and "nice" not in command["arguments"]
    subprocess.run([*command["arguments"], "-fsyntax-only"], cwd=ops_folder, check=True)


def test_a_broken_builder_does_not_keep_the_others_out(ops_folder):
    with open(ops_folder / "ownops.py", "a") as file:
        file.write("\nclass Gone(OpBuilder):\n    name, sources = 'gone', ['gone.cpp']\n")
    done = run("compile-commands", "ownops:Gone", "ownops:Relu", "--output", "-")
    assert done.returncode == 1 and len(json.loads(done.stdout)) == 1
    assert "error: ownops:Gone: The op 'gone' names 'gone.cpp', which does not exist." in done.stderr
