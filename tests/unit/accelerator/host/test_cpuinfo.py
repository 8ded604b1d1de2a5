"""The CPU level and vector features, from fake /proc/cpuinfo files."""

from __future__ import annotations

import os

import pytest
from support.devices.files import write_files

from opforge.accelerator.devices.cpu import CPUAccelerator
from opforge.accelerator.host import cpuinfo

V1 = "fpu cx8 cmov mmx fxsr sse sse2 syscall lm smep"
V2 = f"{V1} pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm"
V3 = f"{V2} fma movbe xsave avx f16c abm bmi1 avx2 bmi2"
V4 = f"{V3} avx512f avx512dq avx512cd avx512bw avx512vl avx512_bf16 amx_tile"
ARM = "fp asimd evtstrm aes atomics fphp asimdhp cpuid sve bf16 i8mm"


def x86(flags: str, processors: int = 1) -> str:
    """Returns /proc/cpuinfo of an x86-64 machine."""
    block = (
        "processor\t: {}\nvendor_id\t: GenuineIntel\nmodel name\t: Fake 9000\nflags\t\t: {}\nbugs\t\t: smep_lies\n\n"
    )
    return "".join(block.format(number, flags) for number in range(processors))


def write_cpuinfo(root, text: str) -> str:
    """Writes /proc/cpuinfo below the root, and returns the root."""
    return write_files(root, {"proc/cpuinfo": text})


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        (V1, "x86-64"),
        (V2, "x86-64-v2"),
        (V3, "x86-64-v3"),
        (V4, "x86-64-v4"),
        (V4.replace("avx512vl", ""), "x86-64-v3"),
        (V4.replace(" bmi2", ""), "x86-64-v2"),
        (V3.replace(" xsave avx f16c", "").replace(" avx2", ""), "x86-64-v2"),  # an OS that saves no AVX registers
        ("fpu cx8 cmov sse sse2", ""),
    ],
)
def test_the_level_is_the_highest_of_which_all_features_are_present(tmp_path, flags, level):
    root = write_cpuinfo(tmp_path, x86(flags))
    assert cpuinfo.read_cpuinfo(root).level == level
    assert str(CPUAccelerator(root).target()) == (f"cpu:{level}" if level else "cpu")


def test_vector_features_have_the_kernels_names_except_sse3(tmp_path):
    features = cpuinfo.read_cpuinfo(write_cpuinfo(tmp_path, x86(V4))).simd
    assert {"sse3", "ssse3", "avx2", "fma", "avx512_bf16", "amx_tile"} <= set(features)
    assert not {"pni", "smep", "popcnt"} & set(features)
    assert list(features) == sorted(features)


@pytest.mark.parametrize(
    ("machine", "flags", "others"),
    [
        ("x86_64", V4, "hypervisor md_clear flush_l1d ibrs_enhanced nonstop_tsc arch_capabilities rtm mpx sme smep"),
        ("aarch64", ARM, "evtstrm cpuid ssbs sb dcpop paca pacg bti mte ecv wfxt"),
    ],
)
def test_what_kernels_list_besides_instructions_does_not_count(machine, flags, others):
    with_others = cpuinfo.CPUInfo("", frozenset(f"{flags} {others}".split()), machine)
    assert with_others.instructions == cpuinfo.CPUInfo("", frozenset(flags.split()), machine).instructions
    assert not set(with_others.instructions) & set(others.split())


@pytest.mark.parametrize(
    ("machine", "flags"),
    [
        ("x86_64", "avx512_bf16 avx_vnni amx_tile gfni sha_ni sse4a adx bmi2 movbe popcnt f16c vaes"),
        ("aarch64", "sve2 sme ilrcpc sm4 ebf16 mops jscvt frint lse128 crc32"),
    ],
)
def test_instructions_count_each(machine, flags):
    assert cpuinfo.CPUInfo("", frozenset(flags.split()), machine).instructions == tuple(sorted(flags.split()))


def test_an_arm_machine_is_aarch64(tmp_path):
    text = f"processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: {ARM}\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n\n"
    cpu = cpuinfo.read_cpuinfo(write_cpuinfo(tmp_path, text * 64))
    assert cpu.level == "aarch64"
    assert cpu.model == "implementer 0x41 part 0xd40"
    assert cpu.simd == ("asimd", "asimdhp", "bf16", "fphp", "i8mm", "sve")


def test_a_32_bit_arm_machine_has_no_level(tmp_path):
    root = write_cpuinfo(tmp_path, "processor\t: 0\nFeatures\t: half thumb neon vfpv4\n\n")
    assert cpuinfo.read_cpuinfo(root).level == ""


def test_only_the_first_of_256_processors_is_read(tmp_path, monkeypatch):
    root = write_cpuinfo(tmp_path, x86(V4, processors=256))
    read, sizes = os.read, []

    def read_and_count(handle, size):
        part = read(handle, size)
        sizes.append(len(part))
        return part

    monkeypatch.setattr(os, "read", read_and_count)
    assert cpuinfo.read_cpuinfo(root).level == "x86-64-v4"
    assert sizes == [4096]


def test_a_long_first_block_is_read_to_its_end(tmp_path):
    assert cpuinfo.read_cpuinfo(write_cpuinfo(tmp_path, x86("f" * 9000 + f" {V4}", 3))).level == "x86-64-v4"


@pytest.mark.parametrize(("uname", "level"), [("x86_64", "x86-64"), ("arm64", "aarch64"), ("riscv64", "")])
def test_without_proc_the_machines_baseline_is_assumed(tmp_path, monkeypatch, uname, level):
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Darwin", "host", "1", "1", uname)))
    assert cpuinfo.read_cpuinfo(str(tmp_path)).level == level
