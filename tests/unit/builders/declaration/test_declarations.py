"""What a builder may declare, what is an error, and whether the declared op is compatible with this machine."""

from __future__ import annotations

import os
import re

import pytest
from support import sample_ops, text_files
from support.compilers.fake_compiler import plan_of

import opforge
from opforge.builders.declaration.description import describe
from opforge.builders.inline_sources import detect_inline_abi
from opforge.builders.jit_builders import from_files
from opforge.errors import (
    BuilderError,
    OpIncompatibleError,
)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"name": "no good"}, "TestedBuilder: name='no good'. Expected an identifier of at most 200 bytes, such as"),
        ({"sources": []}, "TestedBuilder: it names no sources. Name at least one file in `sources`"),
        (
            {"sources": ["plain.c", "other.c", "plain.c"]},
            "TestedBuilder: sources names 'plain.c' twice: its ops would be defined twice. Name it once",
        ),
        ({"abi": "rust"}, "plain: abi='rust'. Expected one of 'torch-stable', 'c', 'torch'"),
    ],
)
def test_the_error_for_a_wrong_declaration_says_what_is_expected(tmp_path, bin, attributes, message):
    cls = sample_ops.plain_op(tmp_path / "src")
    wrong_class = type("TestedBuilder", (cls,), {"__module__": cls.__module__, **attributes})
    for function in (lambda: describe(wrong_class().spec()), lambda: plan_of(wrong_class(), tmp_path)):
        with pytest.raises(BuilderError, match=re.escape(message)):
            function()


def test_an_op_for_another_device_is_incompatible(tmp_path, bin):
    compatibility = sample_ops.plain_op(tmp_path / "src", devices=["cuda"])("cpu").is_compatible()
    assert not compatibility and str(compatibility) == "it is an op for cuda, not for cpu"


def test_a_cpu_level_that_this_processor_lacks_is_a_reason(tmp_path, bin, monkeypatch):
    from opforge.builders.declaration import machine

    monkeypatch.setattr(machine, "cpu_level", lambda: "x86-64-v2")
    compatibility = sample_ops.plain_op(tmp_path / "src")("cpu:x86-64-v3").is_compatible()
    assert compatibility.reasons == ("it is built for x86-64-v3, and this processor offers x86-64-v2",)
    with pytest.raises(
        OpIncompatibleError, match=r"The op 'plain' cannot be used for cpu:x86-64-v3:\n  - it is built for"
    ):
        sample_ops.plain_op(tmp_path / "src")("cpu:x86-64-v3").load()


def test_a_machine_without_a_compiler_is_a_reason_not_an_exception(tmp_path, bin):
    (bin / "g++").unlink()
    os.environ["PATH"] = str(bin)
    compatibility = sample_ops.plain_op(tmp_path / "src")().is_compatible()
    assert not compatibility and "No C++ compiler was found" in str(compatibility)


@pytest.mark.parametrize("cause", ["compiler", "source", "include", "cxx"])
def test_every_cause_of_a_failed_load_is_a_reason_not_an_exception(tmp_path, bin, monkeypatch, cause):
    cls = sample_ops.plain_op(tmp_path / "src", include_dirs=["gone"] if cause == "include" else [])
    if cause == "compiler":
        text_files.write_script(bin, "g++", "exit 3")
    if cause == "source":
        (tmp_path / "src" / "plain.cpp").unlink()
    if cause == "cxx":
        monkeypatch.setenv("CXX", "/no/such/compiler")
    compatibility = cls().is_compatible()
    assert not compatibility and compatibility.reasons


def test_a_compatible_op_has_no_reason(tmp_path, bin):
    compatibility = sample_ops.plain_op(tmp_path / "src")().is_compatible()
    assert compatibility and str(compatibility) == "compatible" and compatibility.reasons == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"extra_cflags": "-O2 -g"}, "extra_cflags='-O2 -g'. Expected a list of strings, one argument each"),
        ({"extra_cflags": [None]}, r"extra_cflags=\[None\]. Expected a list"),
        ({"extra_ldflags": 3}, "extra_ldflags=3. Expected a list"),
        ({"extra_include_paths": [None]}, r"extra_include_paths=\[None\]. Expected a list"),
        ({"sources": None}, "sources=None. Expected a list"),
        ({"fakes": len}, "fakes=<built-in function len>. Expected a dict whose keys are names of the op's functions"),
        ({"signatures": ["f"]}, r"signatures=\['f'\]. Expected a dict"),
        ({"name": None}, "name=None. Expected an identifier of at most 200 bytes"),
        ({"name": "n" * 201}, "Expected an identifier of at most 200 bytes"),
        ({"name": "größe", "abi": "torch"}, "name='größe'. Expected ASCII letters: it is also a Python module's name"),
        ({"torch_target": 2.10, "abi": "torch-stable"}, 'torch_target=2.1. Expected "MAJOR.MINOR"'),
    ],
)
def test_an_argument_of_the_wrong_type_is_an_error(tmp_path, changes, message):
    sample_ops.plain_op(tmp_path)
    with pytest.raises(BuilderError, match=message):
        opforge.load(**{"name": "plain", "sources": [str(tmp_path / "plain.cpp")], **changes})


def test_a_string_instead_of_a_list_of_flags_is_an_error(tmp_path):
    with pytest.raises(BuilderError, match=r"TestedBuilder: extra_compile_args='-O2'. Expected a list of strings"):
        describe(sample_ops.plain_op(tmp_path, extra_compile_args="-O2")().spec())


@pytest.mark.parametrize(
    ("name", "value"), [("cpp_sources", 5), ("cpp_sources", [5]), ("cuda_sources", {"a": "b"}), ("sycl_sources", b"")]
)
def test_sources_of_load_inline_of_another_type_are_a_value_error(name, value):
    with pytest.raises(ValueError) as caught:
        opforge.load_inline("texts", **{"cpp_sources": "", name: value})
    assert str(caught.value) == f"{name}={value!r} cannot be used: expected a text, or a list of texts."


@pytest.mark.parametrize("text", ["", " \n", [], None])
def test_empty_inline_sources_are_refused_before_anything_is_compiled(text):
    with pytest.raises(BuilderError, match=r"empty: its sources are empty[.] Pass at least one text in `cpp_sources`"):
        opforge.load_inline("empty", text)


@pytest.mark.parametrize(
    ("text", "of_device", "bound", "expected"),
    [
        ('extern "C" int f() { return 1; }', "", False, "c"),
        ('extern "C" int f() { return 1; }', "", True, "torch"),
        ('extern "C" int f() { return 1; }', "__global__ void k() {}", False, "torch"),
        ('extern "C" int f() { return 1; }\n#include <ATen/ATen.h>', "", False, "torch"),
        ("int f() { return 1; }", "", False, "torch"),
        ("#include <torch/csrc/stable/ops.h>", "", False, "torch-stable"),
    ],
)
def test_inline_sources_that_export_plain_functions_get_no_header_of_torch(text, of_device, bound, expected):
    assert detect_inline_abi(text, of_device, bound) == expected


def test_an_unknown_abi_is_named_before_functions_that_it_may_not_have():
    with pytest.raises(BuilderError, match=r"abi='facade'[.] Expected"):
        opforge.load_inline("bound", "int f() { return 1; }", functions=["f"], abi="facade")


def test_flags_for_a_devices_compiler_do_not_choose_the_device_as_with_torch(tmp_path):
    (tmp_path / "host.cpp").write_text('extern "C" int f() { return 1; }')
    torchs = (), ["-O3"], ["-O3"], (), (), None, None
    for sources in (str(tmp_path / "host.cpp"), {"cpu": [str(tmp_path / "host.cpp")], "cuda": []}):
        assert from_files("host", sources, torchs, {}, None).spec().target.device == "cpu"


@pytest.mark.parametrize("functions", [5, 0, True, [5], {"f": None}, {5: "f"}, {"f"}])
def test_functions_of_another_type_are_a_value_error_as_with_torch(functions):
    with pytest.raises(ValueError) as caught:
        opforge.load_inline("bound", "int f() { return 1; }", functions=functions)
    expected = "a name, a list of names, or a dict of docstrings by name"
    assert str(caught.value) == f"functions={functions!r} cannot be used: expected {expected}."
