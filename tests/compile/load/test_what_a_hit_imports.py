"""The modules that a hit imports, with those of `import opforge`. Each costs time at the start of every process."""

from __future__ import annotations

import time

import pytest
from support import child_processes

from opforge.builders.cpu.lion import CPULionBuilder
from opforge.memory import RACY_NS

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
    "opforge": "formats trust",
    "opforge.accelerator": "select",
    "opforge.builders": "base",
    "opforge.builders.cpu": "lion",
    "opforge.settings": "environment kinds",
    "opforge.warm": "library lookup machine memory",
}


@pytest.fixture(autouse=True)
def remembered():
    """A hit that is remembered."""
    CPULionBuilder().build()
    time.sleep(RACY_NS / 1e9 + 0.1)  # nothing is remembered of a store that was made just before
    child_processes.run_python(HIT)


def test_a_hit_imports_no_other_module():
    imported = set(child_processes.run_python(HIT).split())
    expected = {f"{package}.{name}" for package, names in PARTS.items() for name in names.split()} | PARTS.keys()
    # Where files of the system may be an image's, their times being whole seconds, that is looked into.
    assert imported - {"opforge.file_systems", "opforge.file_systems.images"} == expected


def test_import_opforge_imports_nothing_else():
    code = "import sys; import torch; import opforge; print(*[m for m in sys.modules if m.startswith('opforge.')])"
    assert child_processes.run_python(code) == "\n"
