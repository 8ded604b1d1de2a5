"""What a prebuilt library requires of the machine that loads it: each minimum, its limit, and the reason."""

from __future__ import annotations

import os

import pytest

from opforge.builders.lookup import host_requirements
from opforge.builders.spec import targets


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A machine of x86-64-v2, with glibc 2.36, the libstdc++ of gcc 12, Python 3.11 and torch 2.10."""
    monkeypatch.setattr(targets, "cpu_level", lambda: "x86-64-v2")
    monkeypatch.setattr(os, "confstr", lambda _name: "glibc 2.36")
    monkeypatch.setattr(host_requirements, "installed_libstdcxx", lambda: (3, 4, 30))
    monkeypatch.setattr(host_requirements, "torch_folder", lambda: "/site/torch")
    monkeypatch.setattr(host_requirements, "torch_version", lambda _folder: "2.10.1+cpu")
    monkeypatch.setattr(host_requirements, "python_tag", lambda: "cpython-311")


def record_of_library(**changes):
    """Returns the record of a library that fits, with changes."""
    record = {"target": "cpu:x86-64", "machine": os.uname().machine, "abi": "c", "floors": {}, "needs": []}
    return {**record, "torch_target": "2.10", "requires": {}, **changes}


EXACT = {"torch": "2.10.1+cpu", "python": "cpython-311"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"target": "cpu:x86-64-v2"}, None),
        ({"target": "cpu:x86-64-v3"}, "it is built for x86-64-v3, and this processor offers x86-64-v2"),
        ({"target": "cuda:sm_90"}, None),
        ({"floors": {"GLIBC": "2.36"}}, None),
        ({"floors": {"GLIBC": "2.4"}}, None),
        ({"floors": {"GLIBC": "2.37"}}, "it needs glibc 2.37, and this system has 2.36"),
        ({"floors": {"GLIBCXX": "3.4.30"}}, None),
        ({"floors": {"GLIBCXX": "3.4.9"}}, None),
        ({"floors": {"GLIBCXX": "3.4.31"}}, "it needs GLIBCXX_3.4.31, and this libstdc++ has up to 3.4.30"),
        ({"abi": "torch-stable"}, None),
        ({"abi": "torch-stable", "torch_target": "2.9"}, None),
        (
            {"abi": "torch-stable", "torch_target": "2.11"},
            "it needs torch 2.11 or newer, and torch 2.10.1+cpu is installed",
        ),
        ({"abi": "torch", "requires": EXACT}, None),
        (
            {"abi": "torch", "requires": {**EXACT, "torch": "2.10.0+cpu"}},
            "it was built for torch 2.10.0+cpu, and torch 2.10.1+cpu is installed",
        ),
        (
            {"abi": "torch", "requires": {**EXACT, "python": "cpython-312"}},
            "it was built for cpython-312, and this is cpython-311",
        ),
    ],
)
def test_a_library_fits_or_its_first_problem_is_returned(changes, problem):
    assert host_requirements.host_problem(record_of_library(**changes)) == problem


def test_a_device_library_for_another_machine_is_rejected_for_its_host_code():
    problem = host_requirements.host_problem(record_of_library(target="cuda:sm_90", machine="riscv64"))
    assert problem == f"its host code is for riscv64, and this machine is {os.uname().machine}"


def test_without_torch_only_an_op_that_does_not_need_it_fits(monkeypatch):
    monkeypatch.setattr(host_requirements, "torch_folder", lambda: None)
    problem = host_requirements.host_problem(record_of_library(abi="torch-stable"))
    assert problem == "it needs torch, and torch is not installed"
    assert host_requirements.host_problem(record_of_library()) is None


def test_a_libstdcxx_of_unknown_version_is_accepted(monkeypatch):
    monkeypatch.setattr(host_requirements, "installed_libstdcxx", lambda: None)
    assert host_requirements.host_problem(record_of_library(floors={"GLIBCXX": "3.4.99"})) is None


def test_a_function_that_the_installed_torch_lacks_is_named():
    pytest.importorskip("torch", reason="pip install torch")
    shims = ["aoti_torch_empty_strided", "aoti_torch_no_such_function"]
    record = record_of_library(abi="torch-stable", needs=["libtorch_cpu.so"], shims=shims)
    assert host_requirements.host_problem({**record, "shims": shims[:1]}) is None
    problem = "it calls torch's aoti_torch_no_such_function, which torch 2.10.1+cpu does not have"
    assert host_requirements.host_problem(record) == problem
