"""The tag of a wheel that holds ops, from what their libraries need."""

from __future__ import annotations

import sys

import pytest

from opforge.builders.wheel_tag import wheel_tag


def record(abi="torch-stable", machine="x86_64", needs=("libtorch_cpu.so", "libstdc++.so.6", "libc.so.6"), **floors):
    return {"abi": abi, "machine": machine, "needs": list(needs), "floors": floors}


@pytest.mark.parametrize(
    ("floors", "platform"),
    [
        ({"GLIBC": "2.27", "GLIBCXX": "3.4.21"}, "manylinux_2_27"),
        ({"GLIBC": "2.32", "GLIBCXX": "3.4.26"}, "manylinux_2_34"),
        ({"GLIBC": "2.17", "GLIBCXX": "3.4.29"}, "manylinux_2_34"),
        ({"GLIBC": "2.28", "CXXABI": "1.3.13"}, "manylinux_2_34"),
        ({"GLIBC": "2.44", "GLIBCXX": "3.4.30"}, "manylinux_2_44"),
        ({"GLIBC": "2.28", "GLIBCXX": "3.4.99"}, "linux"),
        ({}, "manylinux_2_5"),
    ],
)
def test_the_platform_is_the_oldest_that_the_floors_allow(floors, platform):
    assert wheel_tag([record(**floors)])[:3] == ("py3", "none", f"{platform}_x86_64")


def test_the_library_with_the_newest_floor_decides():
    tag = wheel_tag([record("c", GLIBC="2.27"), record(GLIBC="2.35"), record(GLIBC="2.28")])
    assert tag.platform == "manylinux_2_35_x86_64" and tag.reason == ""


def test_with_the_torch_abi_the_wheel_is_for_one_python():
    own = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert wheel_tag([record(GLIBC="2.28"), record("torch", GLIBC="2.28")])[:2] == (own, own)


def test_a_needed_library_that_not_every_system_has_prevents_a_manylinux_tag():
    tag = wheel_tag([record(needs=["libc.so.6", "libnuma.so.1"], GLIBC="2.28")])
    assert tag.platform == "linux_x86_64" and tag.reason == "it needs libnuma.so.1, which not every system has"


def test_each_machine_has_its_own_tag_and_libraries_for_two_are_an_error():
    assert wheel_tag([record(machine="aarch64")]).platform == "manylinux_2_17_aarch64"
    with pytest.raises(ValueError, match="it holds libraries for aarch64 and x86_64, and a wheel is for one"):
        wheel_tag([record(), record(machine="aarch64")])
