"""Whether a prebuilt library fits a machine: each minimum, its limit, and the reason that names both sides."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings, strategies
from support import sample_ops

from opforge.accelerator.target import Target
from opforge.builders.declaration.machine import PROCESSOR, Machine
from opforge.builders.lookup import fit
from opforge.builders.lookup.fit import host_problem
from opforge.cache.layout import Layout
from opforge.cache.records import entry
from opforge.cache.store import Fit
from opforge.errors import PrebuiltRequiredError

MACHINE = Machine(
    processor="x86_64",
    level="x86-64-v2",
    glibc="2.36",
    libstdcxx="3.4.30",
    python="cpython-311",
    torch="2.10.1+cpu",
)


@pytest.fixture(scope="module")
def plain_spec(tmp_path_factory):
    """The declaration of a plain op for the CPU."""
    return sample_ops.plain_op(tmp_path_factory.mktemp("op"))(target="cpu:x86-64").spec()


def record_of_library(**changes):
    """Returns the record of a library that fits, with changes."""
    record = {"target": "cpu:x86-64", "machine": "x86_64", "abi": "c", "floors": {}, "needs": []}
    return {**record, "torch_target": "2.10", "requires": {}, "user_flags": {}, "interface": 1, **changes}


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
    assert host_problem(record_of_library(**changes), MACHINE) == problem


def test_a_device_library_for_another_machine_is_rejected_for_its_host_code():
    problem = host_problem(record_of_library(target="cuda:sm_90", machine="riscv64"), MACHINE)
    assert problem == "its host code is for riscv64, and this machine is x86_64"


def test_the_same_record_fits_one_machine_and_not_another():
    record = record_of_library(
        target="cpu:x86-64-v3", abi="torch-stable", floors={"GLIBC": "2.34", "GLIBCXX": "3.4.29"}
    )
    newer = MACHINE._replace(level="x86-64-v4")
    assert host_problem(record, newer) is None
    assert "processor offers x86-64-v2" in host_problem(record, MACHINE)
    assert "this system has 2.31" in host_problem(record, newer._replace(glibc="2.31"))
    assert "up to 3.4.28" in host_problem(record, newer._replace(libstdcxx="3.4.28"))
    assert "torch 2.9.1 is installed" in host_problem(record, newer._replace(torch="2.9.1"))
    assert "this processor offers aarch64" in host_problem(record, Machine(processor="aarch64", level="aarch64"))
    assert "this processor offers riscv64" in host_problem(record, Machine(processor="riscv64", level=""))


def test_without_torch_only_an_op_that_does_not_need_it_fits():
    without = MACHINE._replace(torch=None)
    assert host_problem(record_of_library(abi="torch-stable"), without) == "it needs torch, and torch is not installed"
    assert host_problem(record_of_library(), without) is None
    unknown = host_problem(record_of_library(abi="torch-stable"), MACHINE._replace(torch=""))
    assert unknown == "it needs torch, and the installed torch does not state its version"


def test_libraries_of_unknown_version_are_accepted():
    record = record_of_library(floors={"GLIBC": "2.99", "GLIBCXX": "3.4.99"})
    assert host_problem(record, MACHINE._replace(glibc="", libstdcxx="")) is None


def test_a_device_op_needs_torchs_library_for_the_device():
    record = record_of_library(target="cuda:sm_90", abi="torch-stable", needs=["libtorch_cuda.so", "libc.so.6"])
    machine = MACHINE._replace(torch_libraries=frozenset({"libtorch_cpu.so"}))
    problem = "it needs torch's libtorch_cuda.so, which the installed torch 2.10.1+cpu does not have"
    assert host_problem(record, machine) == problem
    assert host_problem(record, MACHINE._replace(torch_libraries=frozenset({"libtorch_cuda.so"}))) is None


def test_a_function_that_the_installed_torch_lacks_is_named():
    pytest.importorskip("torch", reason="pip install torch")
    shims = ["aoti_torch_empty_strided", "aoti_torch_no_such_function"]
    record = record_of_library(abi="torch-stable", needs=["libtorch_cpu.so"], shims=shims, built_with_torch="2.13.0")
    assert fit.missing_function({**record, "shims": shims[:1]}, MACHINE) is None
    problem = "it calls torch's aoti_torch_no_such_function, which torch 2.10.1+cpu does not have"
    assert fit.missing_function(record, MACHINE) == problem
    assert fit.missing_function(record, MACHINE._replace(torch="2.13.0")) is None, "as new as the one of the build"


def test_of_the_levels_that_a_machine_runs_the_highest_is_the_best(tmp_path):
    spec = sample_ops.plain_op(tmp_path, value=1)("cpu:x86-64-v3").spec()
    machine = MACHINE._replace(level="x86-64-v4")
    levels = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
    fits = [fit.fit(record_of_library(target=f"cpu:{level}"), machine, spec) for level in levels]
    assert [result.rank for result in fits[:3]] == [-2, -1, 0]
    assert [bool(result.problem) for result in fits] == [False, False, False, True]
    exact = [fit.fit(record_of_library(target=f"cpu:{level}"), machine, spec, exact=True) for level in levels]
    assert [bool(result.problem) for result in exact] == [True, True, False, True]
    older = fit.fit(record_of_library(target="cpu:x86-64-v3"), MACHINE, spec)
    assert older.problem == "it is built for x86-64-v3, and this processor offers x86-64-v2"


def test_a_portable_build_asks_for_a_portable_entry_and_any_other_build_takes_it(tmp_path):
    portable, plain = (sample_ops.plain_op(tmp_path)("cpu:x86-64", portable=value).spec() for value in (True, False))
    assert fit.fit(record_of_library(), MACHINE, portable).problem == "it is not portable"
    assert not fit.fit(record_of_library(portable=True), MACHINE, portable).problem
    assert not fit.fit(record_of_library(portable=True), MACHINE, plain).problem


def test_the_error_says_of_each_entry_what_it_needs_and_what_the_machine_has():
    records = [
        {"floors": {"GLIBC": "2.38"}},
        {"target": "cpu:x86-64-v4"},
        {"abi": "torch-stable", "torch_target": "2.12"},
    ]
    reasons = [
        f"/layer/{number}: {host_problem(record_of_library(**record), MACHINE)}"
        for number, record in enumerate(records)
    ]
    text = str(PrebuiltRequiredError("scale", "cpu:x86-64-v2", reasons))
    for part in (
        "needs glibc 2.38, and this system has 2.36",
        "x86-64-v4, and this processor offers x86-64-v2",
        "needs torch 2.12 or newer, and torch 2.10.1+cpu",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("torch", "python", "problem"),
    [
        ("2.10.0", "cpython-312", None),
        ("2.15.1+cpu", "cpython-314t", None),
        ("2.9.1", "cpython-311", "it needs torch 2.10 or newer, and torch 2.9.1 is installed"),
        (None, "cpython-311", "it needs torch, and torch is not installed"),
    ],
)
def test_an_entry_on_the_facade_is_for_every_python_and_every_torch_from_the_oldest_on(torch, python, problem):
    record = {"abi": "torch-facade", "target": "cpu:x86-64", "machine": "x86_64", "floors": {}, "requires": {}}
    record |= {"torch_target": "2.10", "needs": ["libtorch_cpu.so"]}
    assert fit.host_problem(record, MACHINE._replace(torch=torch, python=python)) == problem


TEXTS = strategies.text(max_size=12) | strategies.sampled_from(["", "x", "2.10", "9" * 5000, "cuda", ">=2", "sm_80"])
TARGETS = [
    "cpu",
    "cpu:x86-64",
    "cpu:x86-64-v9",
    "cuda:sm_80",
    "cuda:sm_80+ptx",
    "cuda:x",
    "hip:gfx90a",
    "xpu:pvc",
    "q:\x1b",
]
REQUIRED = ["torch", "python", "cuda", "hip", "-march=native", "requires_torch", "torch versions", PROCESSOR]
RECORDS = strategies.fixed_dictionaries(
    {
        "target": strategies.sampled_from(TARGETS),
        "abi": strategies.sampled_from(["torch-stable", "torch", "torch-facade", "c"]),
        "machine": strategies.sampled_from(["x86_64", "aarch64", ""]),
        "torch_target": TEXTS,
        "built_with_torch": TEXTS,
        "requires": strategies.dictionaries(strategies.sampled_from(REQUIRED), TEXTS),
        "needs": strategies.lists(TEXTS | strategies.just("libtorch_cuda.so"), max_size=2),
        "floors": strategies.dictionaries(
            strategies.sampled_from(["GLIBC", "GLIBCXX"]), strategies.from_regex(r"\A[0-9.]{1,9}\Z")
        ),
        "interface": strategies.integers(0, 3),
        "portable": strategies.booleans(),
        "user_flags": strategies.dictionaries(TEXTS, TEXTS, max_size=1),
        "shims": strategies.lists(TEXTS, max_size=1),
    }
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(RECORDS, strategies.sampled_from(["cpu:x86-64-v2", "cuda:sm_80"]), strategies.booleans())
def test_any_record_is_judged(plain_spec, record, target, has_device):
    """Others have written it: an offer, a layer. Its fields have the types that the schema declares, and no more."""
    target = Target.parse(target)
    here = MACHINE._replace(devices=("sm_80",), driver=(12, 4)) if has_device else MACHINE
    spec = plain_spec._replace(target=target)
    judge = fit.fit_of_prebuilt(spec, fit.fit_of(spec, False, here))
    try:
        assert isinstance(judge(record).problem, (str, type(None)))
    except ValueError as error:  # a target or a number that cannot be read: callers reject it
        assert str(error)


@pytest.mark.parametrize(
    ("here", "problem"),
    [
        ("/a:/b", None),
        ("", None),
        ("/a", "it was built with CPATH='/a:/b', and CPATH='/a' is set here: unset CPATH, or set it to that value"),
    ],
)
def test_the_variable_by_which_a_build_found_headers_is_the_same_or_not_set(plain_spec, monkeypatch, here, problem):
    monkeypatch.setenv("CPATH", here)
    inputs = {"names": ["no.h"], "files": [], "present": []}
    by_variables = {"variables": {"CPATH": "/a:/b"}, "inputs": {}}
    record = record_of_library(inputs=inputs, by_variables=by_variables)
    assert fit.headers_problem(plain_spec, record) == problem
    assert entry.compared_inputs(record) == ([inputs, {}] if here == "/a:/b" else [inputs])


def test_what_a_record_does_not_state_is_another_version():
    assert host_problem(record_of_library(abi="torch"), MACHINE) == (
        "it does not state the torch that it was built for, and torch 2.10.1+cpu is installed"
    )
    assert host_problem(record_of_library(abi="torch", requires={"torch": "2.10.1+cpu"}), MACHINE) == (
        "it does not state the Python that it was built for, and this is cpython-311"
    )


@pytest.mark.parametrize(
    ("here", "there", "problem"),
    [
        ("-O1", {}, "it was built with no CXXFLAGS, and CXXFLAGS='-O1' is set here: unset CXXFLAGS, or set "),
        ("-O1", {"CXXFLAGS": "-O2"}, "it was built with CXXFLAGS='-O2', and CXXFLAGS='-O1' is set here: unset "),
        ("-O1", {"CXXFLAGS": "-O1"}, None),
        ("", {"CXXFLAGS": "-O2"}, None),
    ],
)
def test_flags_that_are_set_here_are_those_of_the_build(monkeypatch, here, there, problem):
    monkeypatch.setenv("CXXFLAGS", here)
    found = fit.flags_problem("relu", record_of_library(user_flags=there))
    assert found is None if problem is None else found.startswith(problem)


@pytest.mark.parametrize("variable", ["CPATH", "CXXFLAGS"])
def test_without_a_compiler_an_entry_fits_if_no_variable_is_set_that_a_compiler_would_read(
    plain_spec, monkeypatch, tmp_path, variable
):
    judge = fit.fit_without_plan(plain_spec, Layout(str(tmp_path)), lambda record: Fit(rank=7))
    record = record_of_library(key="0" * 32, sha256="0" * 64)
    assert judge(record) == Fit(rank=7)
    monkeypatch.setenv(variable, "-I/a")
    assert judge(record) == Fit(f"it was built with no {variable}, and {variable}='-I/a' is set here")
