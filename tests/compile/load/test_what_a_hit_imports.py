"""The modules of opforge that a hit imports. Each costs time at every start of every process."""

from __future__ import annotations

import time

import pytest
from support import child_processes

from opforge.builders.cpu.lion import CPULionBuilder
from opforge.cache.filesystem.disk import RACY_NS

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
    "opforge": "formats lazy settings trust",
    "opforge.accelerator": "entry_points registry select target",
    "opforge.accelerator.devices": "cpu",
    "opforge.accelerator.host": "cpuid",
    "opforge.accelerator.interface": "accelerator device dtypes environment memory op_builders rng streams",
    "opforge.builders": "base jit loader",
    "opforge.builders.cpu": "adagrad adam fused_adam fused_lamb fused_lion lion quantizer",
    "opforge.builders.lookup": "finder memory",
    "opforge.builders.spec": "abi by_device machine kernel_roots op_spec targets",
    "opforge.builders.toolchains": "",
    "opforge.cache": "current layout machine_folder store",
    "opforge.cache.filesystem": "disk files",
    "opforge.cache.records": "entry",
    "opforge.errors": "base",
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
    assert imported == expected


def test_where_opforge_carries_ops_the_modules_of_a_first_look_up_are_imported_with_it():
    """Each of these ops is looked for once, although other look-ups are remembered already."""
    code = """
import os, sys
import torch
is_folder = os.path.isdir
os.path.isdir = lambda path: CARRIES and os.path.basename(path) == "_opforge_ops" or is_folder(path)
import opforge
names = "opforge.builders.lookup.fit", "opforge.builders.spec.description", "opforge.cache.records.validity"
print(sum(name in sys.modules for name in names))
"""
    for carries, count in ((True, 3), (False, 0)):
        assert child_processes.run_python(code.replace("CARRIES", str(carries))) == f"{count}\n"
