"""The modules that a hit imports, with those of `import opforge`. Each costs time at the start of every process."""

from __future__ import annotations

import time

import pytest
from support import child_processes

from opforge.builders.cpu.lion import CPULionBuilder
from opforge.foundation.remembered_values import RACY_NS

torch = pytest.importorskip("torch", reason="pip install torch")

HIT = """
import os, sys
import torch
from opforge import get_accelerator
op = get_accelerator().create_op_builder("CPULionBuilder").load()
assert op.origin == "cache", op.origin
print(*sorted(name for name in sys.modules if name.split(".")[0] == "opforge"), sep="\\n")
"""
PARTS = {
    "opforge.foundation": "environment file_owners formats remembered_values",
    "opforge.accelerator": "select",
    "opforge.builders": "base",
    "opforge.builders.cpu": "lion",
    "opforge.foundation.settings": "kinds table",
    "opforge.fast_path": "library lookup machine",
}


@pytest.fixture
def remembered(builds_are_shared):
    """A hit that is remembered."""
    CPULionBuilder().build()
    time.sleep(RACY_NS / 1e9 + 0.1)  # nothing is remembered of a store that was made just before
    child_processes.run_with_torch(HIT)


def test_a_hit_imports_no_other_module(remembered):
    imported = set(child_processes.run_with_torch(HIT).split())
    expected = {f"{package}.{name}" for package, names in PARTS.items() for name in names.split()}
    expected |= {"opforge", *PARTS}
    # Where files of the system may be an image's, their times being whole seconds, that is looked into.
    assert imported - {"opforge.foundation.images"} == expected


def test_import_opforge_imports_nothing_else():
    code = "import sys; import torch; import opforge; print(*[m for m in sys.modules if m.startswith('opforge.')])"
    assert child_processes.run_with_torch(code) == "\n"


FURTHER = ["builders.declaration", "builders.declaration.by_device", "builders.jit", "builders.jit_builders"]
FURTHER += ["errors"]
"""What `opforge.load` imports besides, to make its builder."""
LOAD = """
import sys
import opforge
op = opforge.load("two", [sys.argv[1]], abi=sys.argv[2])
print(*sorted(name for name in sys.modules if name.split(".")[0] == "opforge"), sep="\\n")
"""


@pytest.mark.parametrize("abi", ["c", "torch"])
def test_a_first_call_of_load_finds_what_is_remembered_without_what_finds_and_builds_ops(abi, tmp_path):
    source = tmp_path / "two.cpp"
    source.write_text('extern "C" __attribute__((visibility("default"))) int two(int a) { return 2 * a; }\n')
    imported = [set(_run(source, abi).split())]
    time.sleep(RACY_NS / 1e9 + 0.1)
    imported += [set(_run(source, abi).split()) for _ in range(2)]
    assert "opforge.builders.run.planned_build" in imported[0], "it is built"
    assert "opforge.builders.lookup.finder" in imported[1], "it is looked up in full, and remembered"
    others = {"select", "accelerator", "cpu", "lion"}
    expected = {f"{package}.{name}" for package, names in PARTS.items() for name in names.split()}
    expected |= {"opforge", *PARTS}
    expected = {name for name in expected if not others & {*name.split(".")}}
    expected |= {f"opforge.{name}" for name in FURTHER}
    if abi == "c":
        assert imported[2] - {"opforge.foundation.images"} == expected
    else:
        assert imported[2] >= expected | {"opforge.builders.loader"}
        assert "opforge.builders.load_op" not in imported[2], "a spec, a look-up in full"


def _run(source, abi):
    run = child_processes.run_python if abi == "c" else child_processes.run_with_torch
    return run(f"import sys; sys.argv[1:] = {[str(source), abi]!r}\n{LOAD}")
