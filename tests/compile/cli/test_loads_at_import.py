"""A module that loads an op while it is imported: the commands say that what they report is the state after that."""

from __future__ import annotations

import pytest
from support import child_processes, text_files
from support.build_output import states

pytestmark = pytest.mark.compile
run = child_processes.run_command
LOADS = "\nquick = Quick().load()\n"
WARNING = (
    "warning: Importing ownops loads quick, and builds what is not stored, before this command looks."
    " Call load() in a function, at the first use of the op.\n"
)


@pytest.fixture
def module(ops_folder):
    """The text of the module `ownops`, which loads nothing."""
    return (ops_folder / "ownops.py").read_text()


def test_build_ops_says_that_the_import_has_built_the_op(ops_folder, module, own_store):
    text_files.write(ops_folder, "ownops.py", module + LOADS)
    done = run("build-ops", "ownops:Quick")
    assert done.returncode == 0 and states(done) == [["cached", "ownops:Quick"]]
    assert done.stderr == WARNING

    quiet = run("build-ops", "-q", "ownops:Quick")
    assert quiet.returncode == 0 and quiet.stderr == ""


def test_explain_says_so_and_reports_the_hit_that_the_import_has_made(ops_folder, module, own_store):
    text_files.write(ops_folder, "ownops.py", module + LOADS)
    hit = run("cache", "explain", "ownops:Quick")
    assert hit.returncode == 0 and hit.stdout.startswith("hit: ownops:Quick")
    assert hit.stderr == WARNING


def test_a_load_of_another_op_and_one_by_opforge_load_count_too(ops_folder, module, own_store):
    jit = "\nimport opforge\nopforge.load('jit', ['quick.cpp'], abi='c')\n"
    text_files.write(ops_folder, "ownops.py", module + LOADS + jit)
    miss = run("cache", "explain", "ownops:Relu")
    assert miss.returncode == 1
    assert "Importing ownops loads jit, quick, and builds what is not stored" in miss.stderr


def test_a_load_in_a_function_is_no_warning(ops_folder, module, own_store):
    text_files.write(ops_folder, "ownops.py", module + "\ndef quick():\n    return Quick().load()\n")
    for command in (["build-ops", "ownops:Quick"], ["cache", "explain", "ownops:Quick"]):
        assert "warning" not in run(*command).stderr
