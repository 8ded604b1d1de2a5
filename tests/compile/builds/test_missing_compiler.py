"""A compiler that is named and missing, or none at all: an entry is used only if a compiler would build the same."""

from __future__ import annotations

import logging

import pytest
from support import sample_ops, text_files

from opforge.builders.lookup import finder
from opforge.builders.toolchains import TOOLCHAINS, read_variables
from opforge.errors import ToolchainNotFoundError

SOURCE = f"#include <value.h>\n{sample_ops.EXPORT} int value() {{ return VALUE; }}\n"
VARIABLES = {
    "CPATH": ("@/one", "@/two"),
    "CPLUS_INCLUDE_PATH": ("@/one", ""),
    "CXXFLAGS": ("-DX=1", "-DX=2"),
    "LDFLAGS": ("", "-Wl,-O1"),
    "MY_COMPILERS_VARIABLE": ("1", "2"),
}


@pytest.fixture
def builder(tmp_path, monkeypatch):
    """The builder of an op that finds its header by CPATH; a process of its own warns once."""
    monkeypatch.setattr(finder, "_warned", set())
    for folder, number in (("one", 10), ("two", 20)):
        (tmp_path / folder).mkdir()
        text_files.write(tmp_path, f"{folder}/value.h", f"#define VALUE {number}\n")
    text_files.write(tmp_path, "plain.cpp", SOURCE)
    monkeypatch.setenv("CPATH", str(tmp_path / "one"))
    monkeypatch.setenv("OPFORGE_COMPILER_ENV", "MY_COMPILERS_VARIABLE")
    return sample_ops.builder_class(tmp_path, "plain", abi="c")


def test_with_the_same_variables_the_entry_is_used_and_one_line_says_so(builder, monkeypatch, caplog):
    assert builder().build().origin == "built"
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DX")  # of no compiler that this op uses
    caplog.set_level(logging.WARNING, "opforge")
    for _ in range(2):
        assert builder().load().value() == 10
    assert [record.getMessage() for record in caplog.records] == [
        "plain: no C++ compiler was found (CXX=/nonexistent/g++): an earlier build is used, with the same search"
        " variables and flags"
    ]


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("missing", [("CXX", "/nonexistent/g++"), ("PATH", "/nonexistent")])
def test_with_another_variable_the_error_names_it(builder, tmp_path, monkeypatch, variable, missing):
    before, after = (text.replace("@", str(tmp_path)) for text in VARIABLES[variable])
    monkeypatch.setenv(variable, before)
    builder().build()
    monkeypatch.setenv(*missing)
    monkeypatch.setenv(variable, after)
    with pytest.raises(ToolchainNotFoundError) as caught:
        builder().load()
    built = f"{variable}={before!r}" if before else f"no {variable}"
    now = f"{variable}={after!r} is set here" if after else "it is not set here"
    assert f"it was built with {built}, and {now}" in str(caught.value)


def test_a_store_that_is_only_read_is_searched_in_the_same_way(builder, tmp_path, monkeypatch):
    builder().build()
    monkeypatch.setattr(finder, "_is_read_only", lambda _store: True)
    monkeypatch.setattr(finder.remembered_values_writer, "can_remember", lambda: False)
    assert builder().load().value() == 10
    monkeypatch.setenv("CPATH", str(tmp_path / "two"))
    assert builder().load().value() == 20


NAMED = [
    *(("nvcc", variable, "cuda", ".cu") for variable in ("CUDA_HOME", "CUDA_PATH", "NVCC_CCBIN")),
    *(("hipcc", variable, "hip", ".hip") for variable in ("HIP_PATH", "ROCM_HOME", "ROCM_PATH")),
    *(("sycl", variable, "xpu", ".sycl") for variable in ("CMPLR_ROOT", "ONEAPI_ROOT")),
    *(("host", variable, "cpu", ".cpp") for variable in ("CXX",)),
]


@pytest.mark.parametrize(("toolchain", "variable", "device", "suffix"), NAMED)
def test_a_variable_that_names_a_compiler_is_never_passed_over(
    tmp_path, monkeypatch, toolchain, variable, device, suffix
):
    """Also if PATH has one: it would be another choice than the user's."""
    assert toolchain in TOOLCHAINS
    for name in ("nvcc", "hipcc", "icpx"):
        text_files.write_script(tmp_path / "bin", name, "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setenv(variable, "/nonexistent/x")
    text_files.write(tmp_path, f"a{suffix}", "")
    builder = sample_ops.builder_class(tmp_path, "a", abi="c", devices=[device], sources=[f"a{suffix}"])
    with pytest.raises(ToolchainNotFoundError) as caught:
        builder({"cpu": "cpu", "hip": "hip:gfx942"}.get(device, device)).build()
    assert f"{variable}=/nonexistent/x" in str(caught.value)


@pytest.mark.parametrize(("target", "suffix", "names"), [("cuda:sm_90", ".cu", True), ("cpu", ".cpp", False)])
def test_only_variables_of_the_ops_own_toolchain_count(tmp_path, target, suffix, names):
    text_files.write(tmp_path, f"a{suffix}", "")
    device = target.partition(":")[0]
    spec = sample_ops.builder_class(tmp_path, "a", abi="c", devices=[device], sources=[f"a{suffix}"])(target).spec()
    assert ("NVCC_APPEND_FLAGS" in read_variables(spec)) is names and "CPATH" in read_variables(spec)
