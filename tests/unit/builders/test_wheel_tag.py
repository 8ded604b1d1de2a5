"""The tag of a wheel with ops in it, from what their libraries were measured to need."""

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
def test_the_platform_is_as_old_as_the_floors_allow(floors, platform):
    assert wheel_tag([record(**floors)])[:3] == ("py3", "none", f"{platform}_x86_64")


def test_the_most_demanding_library_decides():
    told = wheel_tag([record("c", GLIBC="2.27"), record(GLIBC="2.35"), record(GLIBC="2.28")])
    assert told.platform == "manylinux_2_35_x86_64" and told.reason == ""


def test_the_torch_abi_ties_the_wheel_to_one_python():
    own = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert wheel_tag([record(GLIBC="2.28"), record("torch", GLIBC="2.28")])[:2] == (own, own)


def test_a_library_that_is_not_everywhere_ends_the_promise():
    told = wheel_tag([record(needs=["libc.so.6", "libnuma.so.1"], GLIBC="2.28")])
    assert told.platform == "linux_x86_64" and told.reason == "it needs libnuma.so.1, which not every system has"


def test_another_machine_has_a_tag_of_its_own_and_two_have_none():
    assert wheel_tag([record(machine="aarch64")]).platform == "manylinux_2_17_aarch64"
    with pytest.raises(ValueError, match="it holds libraries for aarch64 and x86_64, and a wheel is for one"):
        wheel_tag([record(), record(machine="aarch64")])
