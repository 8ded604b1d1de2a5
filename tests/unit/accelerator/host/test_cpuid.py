"""The CPU level from the C library's record of CPUID, also in processes whose processor appears to be older."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

import opforge
from opforge.accelerator.host import cpuid, cpuinfo
from opforge.fast_path import machine

LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
PRINT_LEVEL = (
    "import sys; sys.path.insert(0, sys.argv[1]); from opforge.fast_path import machine; print(machine.level())"
)
pytestmark = pytest.mark.skipif(machine.level() is None, reason="the C library has no record of x86 features")


def level_in_process(*launcher: str, **environment: str) -> str:
    """Returns the level in a process that imports little else, because an emulator is slow."""
    command = [*launcher, sys.executable, "-S", "-c", PRINT_LEVEL, os.path.dirname(next(iter(opforge.__path__)))]
    return subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


def test_the_level_is_that_of_the_kernels_list():
    assert machine.level() == cpuinfo.read_cpuinfo().level == cpuid.cpu_level()


@pytest.mark.parametrize(
    ("disabled", "highest"),
    [("AVX512VL", "x86-64-v3"), ("MOVBE", "x86-64-v2"), ("AVX2", "x86-64-v2"), ("SSSE3", "x86-64")],
)
def test_a_feature_that_is_disabled_in_the_process_does_not_count(disabled, highest):
    level = level_in_process(GLIBC_TUNABLES=f"glibc.cpu.hwcaps=-{disabled}")
    assert level == min(highest, machine.level(), key=LEVELS.index)


@pytest.mark.parametrize(("processor", "level"), [("Nehalem", "x86-64-v2"), ("Haswell", "x86-64-v3")])
def test_an_emulated_processor_has_its_own_level(processor, level):
    if not shutil.which("qemu-x86_64"):
        pytest.skip("needs an emulator (apt install qemu-user)")
    assert level_in_process("qemu-x86_64", "-cpu", processor) == level


def test_the_kernels_list_is_used_if_the_c_library_has_no_record(monkeypatch):
    monkeypatch.setattr(machine, "LEAF_FUNCTION", "no_such_function")
    assert machine.level() is None
    monkeypatch.setattr(cpuid, "read_cpuinfo", lambda root: cpuinfo.CPUInfo("", frozenset(), "aarch64"))
    cpuid._cpu_level.cache_clear()
    try:
        assert cpuid.cpu_level() == "aarch64"
    finally:
        cpuid._cpu_level.cache_clear()
