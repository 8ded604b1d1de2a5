"""Builds for debuggers and sanitizers: what the binary records of its source, and what it needs to be loaded."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from support import child_processes, sample_ops


def test_debug_keeps_the_source_path(folder):
    source = str(folder / "plain.cpp")
    cls = sample_ops.plain_op(folder)
    for builder, seen in ((cls(debug=True), True), (cls(), False)):
        dump = subprocess.run(
            ["readelf", "--debug-dump=info", builder.build().library], capture_output=True, text=True, check=True
        )
        assert (source in dump.stdout) is seen


def test_a_debug_build_of_a_moved_tree_names_the_new_place(folder, tmp_path):
    sample_ops.plain_op(folder)(debug=True).build()
    shutil.copytree(folder, tmp_path / "moved")
    shutil.rmtree(folder)
    entry = sample_ops.plain_op(tmp_path / "moved")(debug=True).build()
    dump = subprocess.run(["readelf", "--debug-dump=info", entry.library], capture_output=True, text=True, check=True)
    assert str(tmp_path / "moved") in dump.stdout


@pytest.mark.skipif(shutil.which("gdb") is None, reason="needs gdb (apt install gdb)")
def test_gdb_finds_the_source_line(folder):
    entry = sample_ops.plain_op(folder)(debug=True).build()
    dump = subprocess.run(
        ["gdb", "-batch", "-nx", "-ex", "info line value", entry.library], capture_output=True, text=True, check=False
    )
    assert re.search(r'Line 2 of "\S*plain.cpp"', dump.stdout), dump


def test_sanitize_builds_and_names_its_runtime(folder):
    entry = sample_ops.plain_op(folder)(sanitize="address").build()
    assert any("libasan" in name for name in entry.record["needs"])


def test_loading_a_sanitized_op_without_its_runtime_is_an_error_that_says_what_to_preload(folder, own_store):
    sample_ops.plain_op(folder)(sanitize="address").build()
    code = """
import os
from support import sample_ops
from opforge.errors import LoadError
try:
    sample_ops.plain_op(os.environ["FOLDER"])(sanitize="address").load()
except LoadError as error:
    print("LD_PRELOAD" in str(error), error)
"""
    assert child_processes.run_python(code, env={"FOLDER": str(folder)}).startswith("True"), (
        "the process must survive and say what to do"
    )
