"""The CPU level by the C library's record of CPUID, in processes whose processor is made to look older."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from opforge.accelerator.host import cpuid, cpuinfo

LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
ASK = "import sys; sys.path.insert(0, sys.argv[1]); import cpuid; print(cpuid.level())"
pytestmark = pytest.mark.skipif(cpuid.level() is None, reason="the C library keeps no record of x86 features")


def asked(*before: str, **environment: str) -> str:
    """What a process says that sees nothing but this one module: an emulator is slow."""
    command = [*before, sys.executable, "-S", "-c", ASK, os.path.dirname(cpuid.__file__)]
    return subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


def test_it_is_the_level_that_the_kernel_tells():
    assert cpuid.level() == cpuinfo.read_cpuinfo().level == cpuinfo.cpu_level()


@pytest.mark.parametrize(
    ("without", "highest"),
    [("AVX512VL", "x86-64-v3"), ("MOVBE", "x86-64-v2"), ("AVX2", "x86-64-v2"), ("SSSE3", "x86-64")],
)
def test_a_feature_that_is_switched_off_in_the_process_does_not_count(without, highest):
    found = asked(GLIBC_TUNABLES=f"glibc.cpu.hwcaps=-{without}")
    assert found == min(highest, cpuid.level(), key=LEVELS.index)


@pytest.mark.parametrize(("processor", "level"), [("Nehalem", "x86-64-v2"), ("Haswell", "x86-64-v3")])
def test_an_emulated_processor_has_its_own_level(processor, level):
    if not shutil.which("qemu-x86_64"):
        pytest.skip("needs an emulator (apt install qemu-user)")
    assert asked("qemu-x86_64", "-cpu", processor) == level


def test_without_that_record_the_kernels_list_answers(monkeypatch):
    monkeypatch.setattr(cpuid, "_FUNCTION", "no_such_function")
    assert cpuid.level() is None
    monkeypatch.setattr(cpuinfo, "read_cpuinfo", lambda root: cpuinfo.CPUInfo("", frozenset(), "aarch64"))
    cpuinfo.cpu_level.cache_clear()
    try:
        assert cpuinfo.cpu_level() == "aarch64"
    finally:
        cpuinfo.cpu_level.cache_clear()
